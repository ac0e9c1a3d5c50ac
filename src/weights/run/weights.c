/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of wherry/weights.h: becoming a member, versions, readers. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine.h"
#include "util/clock.h"
#include "util/options.h"
#include "util/ready.h"
#include "weights/run/run.h"

int wh_weights_guard(const struct wh_weights *weights, const char *call)
{
	if (!weights)
		return wh_fail(EINVAL, "%s: weights is NULL", call);
	return wh_engine_guard(weights->engine, call);
}

/* ---- open and close
 * ------------------------------------------------------------------------------ */

static int name_take(struct wh_weights *weights, const char *name)
{
	static const char allowed[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	uint32_t hash = 0x811c9dc5u;

	name = name ? name : "weights";
	if (!*name || strlen(name) >= sizeof(weights->name) || name[strspn(name, allowed)] != '\0')
		return wh_fail(EINVAL, "wh_weights_open: options: the name is not 1 to 31 of the "
				       "characters A-Z a-z 0-9 . _ -");
	snprintf(weights->name, sizeof(weights->name), "%s", name);
	for (; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 0x01000193u;
	weights->tag = WH_WEIGHTS_TAG | hash;
	return 0;
}

static int me_find(struct wh_weights *weights)
{
	const char *name = wh_engine_name(weights->engine);
	uint32_t engine;

	weights->me = UINT32_MAX;
	for (int side = 0; side < 2; side++) {
		weights->is[side] =
			wh_layout_find_engine(weights->layouts[side], name, strlen(name), &engine);
		if (weights->is[side])
			weights->me = weights->plan->cluster.of_engine[side][engine];
	}
	if (weights->me == UINT32_MAX)
		return wh_fail(ENOENT,
			       "wh_weights_open: engine '%.63s' is in neither %.60s nor %.60s",
			       name, weights->layouts[0]->label, weights->layouts[1]->label);
	return 0;
}

static void urls_take(struct wh_weights *weights, const struct wh_weights_options *options)
{
	const struct wh_weights_layout *const layouts[2] = { options->sources, options->targets };

	for (int side = 0; side < 2; side++)
		for (uint32_t i = 0; i < layouts[side]->engine_count; i++) {
			const char *url = layouts[side]->engines[i].url;
			struct wh_link_to *link =
				&weights->links[weights->plan->cluster.of_engine[side][i]];

			if (url && !link->url[0])
				snprintf(link->url, sizeof(link->url), "%s", url);
		}
}

static int weights_plan(struct wh_weights *weights, const struct wh_weights_options *options)
{
	struct wh_plan_options plan = { .chunk = options->chunk, .piece = options->piece };
	int error = wh_weights_layout_make(options->sources, "sources", &weights->layouts[0]);

	if (!error)
		error = wh_weights_layout_make(options->targets, "targets", &weights->layouts[1]);
	if (!error)
		error = wh_plan_new(weights->layouts[0], weights->layouts[1], &plan,
				    &weights->plan);
	if (!error)
		error = wh_weights_describe(weights, options->chunk, options->piece);
	if (!error)
		error = me_find(weights);
	if (!error)
		error = wh_weights_part(weights);
	if (!error)
		urls_take(weights, options);
	return error;
}

/* Free what is not memory that others read. */
static void weights_free(struct wh_weights *weights)
{
	wh_weights_part_free(weights);
	wh_plan_free(weights->plan);
	wh_layout_free(weights->layouts[0]);
	wh_layout_free(weights->layouts[1]);
	free(weights->text);
	pthread_cond_destroy(&weights->changed);
	pthread_mutex_destroy(&weights->lock);
	if (weights->wake >= 0)
		close(weights->wake);
	free(weights);
}

static int weights_new(struct wh_engine *engine, struct wh_weights **out)
{
	struct wh_weights *weights = calloc(1, sizeof(*weights));
	pthread_condattr_t attributes;

	if (!weights)
		return wh_fail(ENOMEM, "wh_weights_open: no memory");
	weights->wake = wh_ready_open("wh_weights_open");
	if (weights->wake < 0) {
		int error = weights->wake;

		free(weights);
		return error;
	}
	weights->engine = engine;
	weights->heard_end = &weights->heard;
	pthread_mutex_init(&weights->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&weights->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	*out = weights;
	return 0;
}

int wh_weights_open(struct wh_engine *engine, const struct wh_weights_options *options,
		    struct wh_weights **out)
{
	int error = wh_engine_guard(engine, "wh_weights_open");
	struct wh_weights_options copy;
	struct wh_weights *weights = NULL;

	if (!error)
		error = wh_options_copy(&copy, sizeof(copy), options, sizeof(size_t),
					"wh_weights_open");
	if (error)
		return error;
	if (!out || copy.reserved || (copy.memory_count && !copy.memory))
		return wh_fail(EINVAL,
			       "wh_weights_open: out or options.memory is NULL, or a reserved "
			       "member is not 0");
	if (engine->turns)
		return wh_fail(EOPNOTSUPP, "wh_weights_open: the engine has no threads");
	if (wh_engine_inside(engine))
		return wh_fail(EDEADLK, "wh_weights_open: called from a callback");
	error = weights_new(engine, &weights);
	if (error)
		return error;
	error = name_take(weights, copy.name);
	if (!error)
		error = weights_plan(weights, &copy);
	if (!error)
		error = wh_weights_memory(weights, &copy);
	if (!error)
		error = wh_weights_start(weights);
	if (error) {
		char text[WH_TEXT_MAX];

		snprintf(text, sizeof(text), "%s", wh_fail_text());
		wh_weights_stop(weights);
		/* Nobody has the weights to try again. */
		while (wh_weights_memory_free(weights) == -EBUSY)
			;
		weights_free(weights);
		return wh_fail(-error, "%s", text);
	}
	*out = weights;
	return 0;
}

static int weights_close(struct wh_weights *weights)
{
	int error;

	if (!weights)
		return 0;
	error = wh_weights_guard(weights, "wh_weights_close");
	if (error)
		return error;
	if (wh_engine_inside(weights->engine))
		return wh_fail(EDEADLK, "wh_weights_close: called from a callback");
	pthread_mutex_lock(&weights->lock);
	if (weights->pins[0] || weights->pins[1])
		error = wh_fail(EBUSY, "wh_weights_close: %" PRIu32 " views are not released",
				weights->pins[0] + weights->pins[1]);
	pthread_mutex_unlock(&weights->lock);
	if (error)
		return error;
	if (!weights->stopped) {
		wh_weights_stop(weights);
		weights->stopped = true;
	}
	error = wh_weights_memory_free(weights);
	if (!error)
		weights_free(weights);
	return error;
}

int wh_weights_close(struct wh_weights *weights)
{
	wh_fail_begin(); /* what it gives up may have failed */
	return wh_fail_end(weights_close(weights));
}

/* ---- versions
 * ------------------------------------------------------------------------------------ */

int wh_weights_publish(struct wh_weights *weights, uint64_t version)
{
	int error = wh_weights_guard(weights, "wh_weights_publish");

	if (error)
		return error;
	if (!weights->is[0])
		return wh_fail(EACCES, "wh_weights_publish: engine '%.63s' is no source in %.60s",
			       wh_engine_name(weights->engine), weights->layouts[0]->label);
	pthread_mutex_lock(&weights->lock);
	if (weights->offered) {
		error = wh_fail(EALREADY,
				"wh_weights_publish: version %" PRIu64
				" is published: retract it first",
				weights->published);
	} else if (version <= weights->published) {
		error = wh_fail(EINVAL,
				"wh_weights_publish: version %" PRIu64
				" is not greater than the one before, %" PRIu64,
				version, weights->published);
	} else {
		weights->published = version;
		weights->published_at = wh_now();
		weights->arrived_after = 0;
		weights->offered = true;
		wh_weights_head_set(weights->control, WH_COPY_SOURCE, version, WH_COPY_WHOLE);
		wh_weights_head_published(weights->control, version);
		wh_weights_tell(weights);
	}
	pthread_mutex_unlock(&weights->lock);
	wh_weights_wake(weights);
	return error;
}

int wh_weights_retract(struct wh_weights *weights)
{
	int error = wh_weights_guard(weights, "wh_weights_retract");

	if (error)
		return error;
	if (!weights->is[0])
		return wh_fail(EACCES, "wh_weights_retract: engine '%.63s' is no source in %.60s",
			       wh_engine_name(weights->engine), weights->layouts[0]->label);
	pthread_mutex_lock(&weights->lock);
	weights->offered = false;
	wh_weights_head_clear(weights->control, WH_COPY_SOURCE);
	wh_weights_tell(weights);
	pthread_mutex_unlock(&weights->lock);
	wh_weights_wake(weights);
	return 0;
}

/* Whether a member of this side (0: a source, 1: a target) refuses this one, or has other layouts.
 */
static int weights_refused(const struct wh_weights *weights, int side, const char *call)
{
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++) {
		const struct wh_link_to *link = &weights->links[i];

		if (link->refused && link->error[0] && weights->node_regions[side][i])
			return wh_fail(-link->refused, "%s: %s", call, link->error);
	}
	return 0;
}

/* Whether all who count have it. */
static bool weights_arrived(const struct wh_weights *weights, uint64_t version)
{
	if (weights->is[1] && weights->current < version)
		return false;
	for (uint32_t i = 0; weights->is[0] && i < weights->plan->cluster.node_count; i++) {
		const struct wh_link_to *link = &weights->links[i];

		if (i == weights->me || !weights->node_regions[1][i])
			continue;
		if (wh_link_usable(link) ? wh_link_whole(link) < version : !link->ever)
			return false;
	}
	return true;
}

/* For explanations: when a program that waits saw the last target have it. */
static void weights_note_arrival(struct wh_weights *weights, uint64_t version)
{
	if (weights->is[0] && version == weights->published && !weights->arrived_after)
		weights->arrived_after = wh_now() - weights->published_at;
}

/* Wait for a change. False: the deadline has come. */
static bool weights_sleep(struct wh_weights *weights, int64_t deadline)
{
	struct timespec time = { deadline / WH_SECOND, deadline % WH_SECOND };

	if (deadline == INT64_MAX)
		return !pthread_cond_wait(&weights->changed, &weights->lock);
	return wh_now() < deadline &&
	       pthread_cond_timedwait(&weights->changed, &weights->lock, &time) != ETIMEDOUT;
}

int wh_weights_wait(struct wh_weights *weights, uint64_t version, int64_t timeout)
{
	int64_t deadline = wh_deadline(timeout);
	int error = wh_weights_guard(weights, "wh_weights_wait");

	if (error)
		return error;
	if (timeout > 0 && wh_engine_inside(weights->engine))
		return wh_fail(EDEADLK, "wh_weights_wait: called from a callback");
	pthread_mutex_lock(&weights->lock);
	while (!weights_arrived(weights, version)) {
		for (int side = 0; !error && side < 2; side++)
			if (weights->is[1 - side])
				error = weights_refused(weights, side, "wh_weights_wait");
		if (!error && !weights_sleep(weights, deadline))
			error = weights_arrived(weights, version) ? 0 : -EAGAIN;
		else if (!error)
			continue;
		break;
	}
	if (!error)
		weights_note_arrival(weights, version);
	pthread_mutex_unlock(&weights->lock);
	return error == -EAGAIN ? wh_fail(EAGAIN,
					  "wh_weights_wait: not all have version %" PRIu64
					  " in that time: see wh_weights_explain()",
					  version) :
				  error;
}

int wh_weights_acquire(struct wh_weights *weights, uint64_t after, int64_t timeout,
		       struct wh_weights_view *out)
{
	struct wh_weights_view view = { .size = sizeof(view) };
	int64_t deadline = wh_deadline(timeout);
	int error = wh_weights_guard(weights, "wh_weights_acquire");

	if (error)
		return error;
	if (!out)
		return wh_fail(EINVAL, "wh_weights_acquire: out is NULL");
	if (!weights->is[1])
		return wh_fail(EACCES, "wh_weights_acquire: engine '%.63s' is no target in %.60s",
			       wh_engine_name(weights->engine), weights->layouts[1]->label);
	if (timeout > 0 && wh_engine_inside(weights->engine))
		return wh_fail(EDEADLK, "wh_weights_acquire: called from a callback");
	pthread_mutex_lock(&weights->lock);
	while (!error && weights->current <= after) {
		error = weights_refused(weights, 0, "wh_weights_acquire");
		if (!error && !weights_sleep(weights, deadline) && weights->current <= after)
			error = wh_fail(EAGAIN,
					"wh_weights_acquire: no version after %" PRIu64
					" in that time",
					after);
	}
	if (!error) {
		view.version = weights->current;
		view.buffer = weights->current_buffer;
		view.addresses = weights->addresses[view.buffer];
		view.count = weights->region_count[1];
		error = wh_options_return(out, &view, sizeof(view), "wh_weights_acquire");
	}
	if (!error)
		weights->pins[view.buffer]++;
	pthread_mutex_unlock(&weights->lock);
	return error;
}

int wh_weights_release(struct wh_weights *weights, const struct wh_weights_view *view)
{
	int error = wh_weights_guard(weights, "wh_weights_release");

	if (error)
		return error;
	if (!view || view->size < sizeof(*view) || view->buffer > 1)
		return wh_fail(EINVAL, "wh_weights_release: view is no view");
	pthread_mutex_lock(&weights->lock);
	if (!weights->pins[view->buffer])
		error = wh_fail(EINVAL, "wh_weights_release: the view has been released");
	else
		weights->pins[view->buffer]--;
	pthread_mutex_unlock(&weights->lock);
	wh_weights_wake(weights);
	return error;
}

int wh_weights_cancel(struct wh_weights *weights, uint64_t version)
{
	int error = wh_weights_guard(weights, "wh_weights_cancel");

	if (error)
		return error;
	if (!weights->is[1])
		return wh_fail(EACCES, "wh_weights_cancel: engine '%.63s' is no target in %.60s",
			       wh_engine_name(weights->engine), weights->layouts[1]->label);
	if (wh_engine_inside(weights->engine))
		return wh_fail(EDEADLK, "wh_weights_cancel: called from a callback");
	pthread_mutex_lock(&weights->lock);
	if (version > weights->cancelled)
		weights->cancelled = version;
	if (weights->attempt.version && weights->attempt.version <= version &&
	    !weights->attempt.aborting)
		wh_weights_abort(weights);
	wh_weights_wake(weights);
	while (weights->attempt.version && weights->attempt.version <= version)
		pthread_cond_wait(&weights->changed, &weights->lock);
	pthread_mutex_unlock(&weights->lock);
	return 0;
}
