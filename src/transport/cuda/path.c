/* SPDX-License-Identifier: Apache-2.0 */
/* Transport cuda: which GPU can reach both sides of a transfer, and which of them moves the bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/transport.h"
#include "util/error.h"

typedef unsigned long long ull;

#define PULL_FROM ((uint64_t)1 << 20) /* bytes of a transfer: wh_path_choose_pull() */

static bool path_reaches(const struct wh_device_mapping *by, const struct wh_device_mapping *to)
{
	if (!by->device || by->managed || to->managed)
		return false;
	if (to->every)
		return true;
	/* A context of the application reaches only the memory that it owns. */
	if (by->context || to->context)
		return by->device == to->device && by->context == to->context;
	return atomic_load_explicit(&to->reached, memory_order_acquire) & wh_device_bit(by->device);
}

void wh_path_choose(const struct wh_device_mapping *local, const struct wh_device_mapping *remote,
		    uint32_t op, struct wh_gpu_path *path)
{
	const struct wh_device_mapping *source = op == WH_WRITE ? local : remote, *by;

	memset(path, 0, sizeof(*path));
	/* Our own GPU first: the other one belongs to somebody else's work. */
	if (path_reaches(local, local) && path_reaches(local, remote))
		by = local;
	else if (path_reaches(remote, remote) && path_reaches(remote, local))
		by = remote;
	else
		return;
	path->device = by->device;
	path->context = by->context;
	if (!local->device || !remote->device)
		path->way = by == source ? WH_BLOCKS_TO_HOST : WH_BLOCKS_FROM_HOST;
	else if (local->device == remote->device && !local->fabric && !remote->fabric)
		path->way = WH_BLOCKS_WITHIN;
	else
		path->way = by == source ? WH_BLOCKS_PUSH : WH_BLOCKS_PULL;
}

bool wh_path_choose_pull(const struct wh_peer *peer, const struct wh_fragment *fragment,
			 const struct wh_device_mapping *local,
			 const struct wh_device_mapping *remote, struct wh_gpu_path *path)
{
	const struct wh_device_mapping *by = path->device == local->device ? remote : local;
	const struct wh_device_mapping *to = by == local ? remote : local;

	/* Of another process the other GPU is none of this one's. Shorter transfers depend on what
	 * it costs to begin, and kernels push both ways as fast as they pull. */
	if (!wh_peer_is_self(peer) || fragment->blocks ||
	    fragment->bytes < PULL_FROM * fragment->transfers)
		return false;
	if (path->way != WH_BLOCKS_PUSH || local->fabric || remote->fabric ||
	    !path_reaches(by, by) || !path_reaches(by, to))
		return false;
	path->device = by->device;
	path->context = by->context;
	path->way = WH_BLOCKS_PULL;
	return true;
}

/* In a scope of the device. */
static int legacy_ask_driver(struct wh_cuda *cuda, const struct wh_device_mapping *mapping,
			     const struct wh_cuda_device *device, CUdeviceptr *base)
{
	int result;

	if (!cuda->cuIpcOpenMemHandle)
		return wh_cuda_missing(cuda, "cuIpcOpenMemHandle");
	result = cuda->cuIpcOpenMemHandle(base, mapping->legacy->handle, CUDA_IPC_LAZY_PEER);
	/* The handle has its exporter's number. Two containers often both have a process 1. */
	if (result == CUDA_INVALID_CONTEXT)
		return wh_fail(EINVAL,
			       "CUDA takes the handle for this process's own, as if both had "
			       "one PID: run one under an init (tini, docker --init), or use "
			       "memory of the kind vmm");
	return wh_cuda_check(cuda, result, "cuIpcOpenMemHandle", "memory of %s on cuda:%d",
			     mapping->device->text, device->ordinal);
}

/* Open a legacy handle for the device, if it is not open. If the memory lies on another device,
 * peer access is switched on. */
static int legacy_open(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping,
		       struct wh_cuda_device *device)
{
	struct wh_cuda *cuda = wh_gpus_cuda(mappings->gpus);
	struct wh_cuda_scope scope;
	CUdeviceptr base = 0;
	size_t size;
	int error;

	if (atomic_load(&mapping->reached) & wh_device_bit(device))
		return 0;
	error = wh_cuda_enter(cuda, device, &scope);
	if (error)
		return error;
	error = legacy_ask_driver(cuda, mapping, device, &base);
	/* A wrong size from the owner must not lead a kernel past the end. */
	if (!error && !cuda->cuMemGetAddressRange(NULL, &size, base) &&
	    size < mapping->legacy->size) {
		cuda->cuIpcCloseMemHandle(base);
		error = wh_fail(EPROTO, "the peer's memory on %s has %zu bytes, and not %llu",
				mapping->device->text, size, (ull)mapping->legacy->size);
	}
	wh_cuda_leave(&scope);
	if (error)
		return error;
	mapping->legacy->base[device->ordinal] = base;
	atomic_fetch_or(&mapping->reached, wh_device_bit(device));
	return 0;
}

uint64_t wh_device_mapping_own(struct wh_device_mappings *mappings,
			       struct wh_device_mapping *mapping)
{
	int error = 0;

	if (!mapping->legacy)
		return mapping->address;
	if (!(atomic_load_explicit(&mapping->reached, memory_order_acquire) &
	      wh_device_bit(mapping->device))) {
		pthread_mutex_lock(&mappings->lock);
		error = legacy_open(mappings, mapping, mapping->device);
		pthread_mutex_unlock(&mappings->lock);
	}
	return error ? 0 : wh_device_mapping_address(mapping, mapping->device);
}

/* Let the device that one side lies on reach the other side, where that can be switched on. */
static void path_try(struct wh_device_mappings *mappings, const struct wh_device_mapping *by,
		     struct wh_device_mapping *to, char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = wh_gpus_cuda(mappings->gpus);
	int error = 0;

	if (!by->device || by->managed || to->managed || path_reaches(by, to))
		return;
	if (to->legacy) {
		error = legacy_open(mappings, to, by->device);
	} else if (by->context || to->context || !to->device) {
		snprintf(why, WH_REFUSAL, "%s",
			 *to->why ? to->why :
				    "its sides belong to different contexts of the application");
	} else if (to->fixed) {
		snprintf(why, WH_REFUSAL, "its mapping does not admit %.100s (cuMemSetAccess)",
			 by->device->text);
	} else {
		error = wh_cuda_peer_enable(cuda, by->device, to->device);
		if (!error)
			atomic_fetch_or(&to->reached, wh_device_bit(by->device));
	}
	if (error)
		wh_cuda_refuse(why, error);
}

bool wh_path_make(struct wh_device_mappings *mappings, struct wh_device_mapping *local,
		  struct wh_device_mapping *remote, uint32_t op, struct wh_gpu_path *path,
		  char why[WH_REFUSAL])
{
	pthread_mutex_lock(&mappings->lock);
	if (local->managed || remote->managed)
		snprintf(why, WH_REFUSAL, "%s", local->managed ? local->why : remote->why);
	path_try(mappings, local, remote, why);
	wh_path_choose(local, remote, op, path);
	if (!path->device) {
		/* Its own device, which staging needs as well; then the device that copies. */
		path_try(mappings, remote, remote, why);
		path_try(mappings, remote, local, why);
		wh_path_choose(local, remote, op, path);
	}
	pthread_mutex_unlock(&mappings->lock);
	return path->device;
}

void wh_path_make_pull(struct wh_device_mappings *mappings, struct wh_device_mapping *local,
		       struct wh_device_mapping *remote, const struct wh_gpu_path *path)
{
	struct wh_device_mapping *by = path->device == local->device ? remote : local;
	char why[WH_REFUSAL];

	if (path->way != WH_BLOCKS_PUSH || !path_reaches(by, by))
		return;
	pthread_mutex_lock(&mappings->lock);
	wh_fail_begin(); /* without it both sides push */
	path_try(mappings, by, by == local ? remote : local, why);
	wh_fail_end(0);
	pthread_mutex_unlock(&mappings->lock);
}
