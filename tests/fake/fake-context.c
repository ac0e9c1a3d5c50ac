/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: the devices' primary ones, those of the application, and each thread's stack of them.
 */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define CONTEXT_DEPTH 16

struct wh_list fake_contexts = { &fake_contexts, &fake_contexts };

static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER; /* outermost */
static _Thread_local struct fake_context *context_stack[CONTEXT_DEPTH];
static _Thread_local unsigned context_depth;

int fake_health(const struct fake_context *context)
{
	if (context->device->lost)
		return context->device->lost;
	if (!context->alive)
		return FAKE_CONTEXT_DESTROYED;
	return context->error;
}

int fake_current(struct fake_context **out)
{
	if (!context_depth || !context_stack[context_depth - 1])
		return FAKE_INVALID_CONTEXT;
	*out = context_stack[context_depth - 1];
	return fake_health(*out);
}

bool fake_context_known(struct fake_context *context)
{
	bool known = false;

	pthread_mutex_lock(&fake_lock);
	for (struct wh_list *l = fake_contexts.next; l != &fake_contexts && !known; l = l->next)
		known = wh_container(l, struct fake_context, link) == context;
	pthread_mutex_unlock(&fake_lock);
	return known;
}

/* Under fake_lock. */
static struct fake_context *new_context(struct fake_device *device, unsigned flags)
{
	struct fake_context *context = calloc(1, sizeof(*context));

	if (!context)
		return NULL;
	context->device = device;
	context->flags = flags;
	context->alive = true;
	wh_list_init(&context->streams);
	wh_list_append(&fake_contexts, &context->link);
	return context;
}

static void end_context(struct fake_context *context)
{
	context->alive = false;
	fake_streams_end(context);
	fake_ranges_drop(context);
	context->peers = 0;
	context->error = 0;
}

FAKE_API int cuDevicePrimaryCtxRetain(struct fake_context **out, int device)
{
	struct fake_device *d = fake_device(device);
	struct fake_context *primary;

	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	if (!d)
		return FAKE_INVALID_DEVICE;
	if (d->lost)
		return d->lost;
	pthread_mutex_lock(&primary_lock);
	primary = d->primary;
	if (!primary) {
		pthread_mutex_lock(&fake_lock);
		d->primary = primary = new_context(d, d->primary_flags);
		pthread_mutex_unlock(&fake_lock);
	}
	if (primary) {
		primary->alive = true;
		d->primary_count++;
		*out = primary;
	}
	pthread_mutex_unlock(&primary_lock);
	return primary ? FAKE_OK : FAKE_OUT_OF_MEMORY;
}

FAKE_API int cuDevicePrimaryCtxRelease_v2(int device)
{
	struct fake_device *d = fake_device(device);
	int error = FAKE_OK;

	FAKE_ENTER();
	if (!d)
		return FAKE_INVALID_DEVICE;
	pthread_mutex_lock(&primary_lock);
	if (!d->primary_count)
		error = FAKE_INVALID_CONTEXT;
	else if (--d->primary_count == 0)
		end_context(d->primary);
	pthread_mutex_unlock(&primary_lock);
	return error;
}

FAKE_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
	struct fake_device *d = fake_device(device);

	FAKE_ENTER();
	if (!flags || !active)
		return FAKE_INVALID_VALUE;
	if (!d)
		return FAKE_INVALID_DEVICE;
	pthread_mutex_lock(&primary_lock);
	*flags = d->primary_flags;
	*active = d->primary_count > 0;
	pthread_mutex_unlock(&primary_lock);
	return FAKE_OK;
}

FAKE_API int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags)
{
	struct fake_device *d = fake_device(device);

	FAKE_ENTER();
	if (!d)
		return FAKE_INVALID_DEVICE;
	pthread_mutex_lock(&primary_lock);
	d->primary_flags = flags;
	pthread_mutex_unlock(&primary_lock);
	return FAKE_OK;
}

static int context_push(struct fake_context *context)
{
	if (context_depth == CONTEXT_DEPTH)
		return FAKE_INVALID_VALUE;
	context_stack[context_depth++] = context;
	return FAKE_OK;
}

FAKE_API int cuCtxCreate_v2(struct fake_context **out, unsigned flags, int device)
{
	struct fake_device *d = fake_device(device);
	struct fake_context *context;
	int error;

	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	if (!d)
		return FAKE_INVALID_DEVICE;
	if (d->lost)
		return d->lost;
	pthread_mutex_lock(&fake_lock);
	context = new_context(d, flags);
	pthread_mutex_unlock(&fake_lock);
	if (!context)
		return FAKE_OUT_OF_MEMORY;
	error = context_push(context);
	if (error)
		context->alive = false;
	else
		*out = context;
	return error;
}

FAKE_API int cuCtxDestroy_v2(struct fake_context *context)
{
	FAKE_ENTER();
	if (!context || !fake_context_known(context) || context == context->device->primary)
		return FAKE_INVALID_CONTEXT;
	if (!atomic_exchange(&context->alive, false))
		return FAKE_CONTEXT_DESTROYED;
	end_context(context);
	if (context_depth && context_stack[context_depth - 1] == context)
		context_depth--;
	return FAKE_OK;
}

FAKE_API int cuCtxPushCurrent_v2(struct fake_context *context)
{
	FAKE_ENTER();
	if (context && !fake_context_known(context))
		return FAKE_INVALID_CONTEXT;
	return context_push(context);
}

FAKE_API int cuCtxPopCurrent_v2(struct fake_context **out)
{
	FAKE_ENTER();
	if (!context_depth)
		return FAKE_INVALID_CONTEXT;
	context_depth--;
	if (out)
		*out = context_stack[context_depth];
	return FAKE_OK;
}

FAKE_API int cuCtxSetCurrent(struct fake_context *context)
{
	FAKE_ENTER();
	if (context && !fake_context_known(context))
		return FAKE_INVALID_CONTEXT;
	if (!context) {
		context_depth -= context_depth > 0;
		return FAKE_OK;
	}
	if (!context_depth)
		return context_push(context);
	context_stack[context_depth - 1] = context;
	return FAKE_OK;
}

FAKE_API int cuCtxGetCurrent(struct fake_context **out)
{
	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	*out = context_depth ? context_stack[context_depth - 1] : NULL;
	return FAKE_OK;
}

FAKE_API int cuCtxGetDevice(int *device)
{
	FAKE_ENTER();
	if (!device)
		return FAKE_INVALID_VALUE;
	if (!context_depth || !context_stack[context_depth - 1])
		return FAKE_INVALID_CONTEXT;
	*device = context_stack[context_depth - 1]->device->ordinal;
	return FAKE_OK;
}

FAKE_API int cuCtxGetFlags(unsigned *flags)
{
	struct fake_context *context;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	if (!flags)
		return FAKE_INVALID_VALUE;
	*flags = context->flags;
	return FAKE_OK;
}

FAKE_API int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	FAKE_ENTER();
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return FAKE_OK;
}

FAKE_API int cuCtxSynchronize(void)
{
	struct fake_context *context;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	fake_context_wait(context);
	return fake_health(context);
}

FAKE_API int cuCtxEnablePeerAccess(struct fake_context *peer, unsigned flags)
{
	struct fake_context *context;
	unsigned bit;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	if (flags)
		return FAKE_INVALID_VALUE;
	if (!peer || !fake_context_known(peer) || !peer->alive)
		return FAKE_INVALID_CONTEXT;
	if (peer->device == context->device || !fake_peers(context->device, peer->device))
		return FAKE_PEER_UNSUPPORTED;
	bit = 1U << peer->device->ordinal;
	return atomic_fetch_or(&context->peers, bit) & bit ? FAKE_PEER_ENABLED : FAKE_OK;
}

FAKE_API int cuCtxDisablePeerAccess(struct fake_context *peer)
{
	struct fake_context *context;
	unsigned bit;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	if (!peer || !fake_context_known(peer))
		return FAKE_INVALID_CONTEXT;
	bit = 1U << peer->device->ordinal;
	return atomic_fetch_and(&context->peers, ~bit) & bit ? FAKE_OK : FAKE_PEER_NOT_ENABLED;
}
