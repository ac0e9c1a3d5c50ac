/* SPDX-License-Identifier: Apache-2.0 */
/* What a member has, from whom, and what it waits for. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "util/options.h"
#include "weights/run/run.h"

int wh_weights_info(struct wh_weights *weights, struct wh_weights_info *info)
{
	struct wh_weights_info now = { .size = sizeof(now) };
	int error = wh_weights_guard(weights, "wh_weights_info");

	if (error)
		return error;
	if (!info)
		return wh_fail(EINVAL, "wh_weights_info: info is NULL");
	pthread_mutex_lock(&weights->lock);
	now.published = weights->published;
	now.current = weights->current;
	now.receiving = weights->attempt.version;
	now.bytes = weights->own_bytes;
	now.received = weights->attempt.version ? wh_weights_received(weights) : 0;
	now.total = weights->total;
	now.steps = weights->own_count;
	now.members = weights->plan->cluster.node_count;
	pthread_mutex_unlock(&weights->lock);
	return wh_options_return(info, &now, sizeof(now), "wh_weights_info");
}

static uint32_t link_report_state(const struct wh_link_to *link)
{
	return link->refused        ? WH_WEIGHTS_REFUSED :
	       wh_link_usable(link) ? WH_WEIGHTS_CONNECTED :
	       link->ever           ? WH_WEIGHTS_LOST :
	       link->wanted         ? WH_WEIGHTS_CONNECTING :
				      WH_WEIGHTS_UNUSED;
}

int wh_weights_member(struct wh_weights *weights, uint32_t index, struct wh_weights_member *out)
{
	struct wh_weights_member member = { .size = sizeof(member) };
	int error = wh_weights_guard(weights, "wh_weights_member");
	const struct wh_link_to *link;

	if (error)
		return error;
	if (!out)
		return wh_fail(EINVAL, "wh_weights_member: out is NULL");
	if (index >= weights->plan->cluster.node_count)
		return wh_fail(ENOENT, "wh_weights_member: there are %" PRIu32 " members",
			       weights->plan->cluster.node_count);
	pthread_mutex_lock(&weights->lock);
	link = &weights->links[index];
	snprintf(member.name, sizeof(member.name), "%s", weights->plan->cluster.nodes[index].name);
	member.state = link_report_state(link);
	for (int side = 0; side < 2; side++)
		member.roles |= weights->node_regions[side][index] ? 1u << side : 0;
	member.published = link->head.published;
	member.current = wh_link_whole(link);
	for (int i = WH_COPY_FIRST; i < WH_COPY_SLOTS; i++)
		if (link->head.slots[i].state == WH_COPY_FILLING) {
			member.receiving = link->head.slots[i].version;
			member.received = link->head.received;
		}
	member.sent = link->bytes;
	snprintf(member.route, sizeof(member.route), "%s", link->route);
	if (!wh_link_usable(link))
		snprintf(member.error, sizeof(member.error), "%s", link->error);
	pthread_mutex_unlock(&weights->lock);
	return wh_options_return(out, &member, sizeof(member), "wh_weights_member");
}

/* ---- for people
 * ---------------------------------------------------------------------------------- */

struct writer {
	char *text;
	size_t room, length;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *out, const char *format, ...)
{
	size_t at = out->length < out->room ? out->length : out->room;
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(out->room ? out->text + at : NULL, out->room - at, format, arguments);
	va_end(arguments);
	out->length += length > 0 ? (size_t)length : 0;
}

static void explain_link(struct writer *out, const struct wh_link_to *link)
{
	static const char *const states[] = { "not connected", "connecting", "connected", "lost",
					      "refused" };
	const struct wh_weights *weights = link->weights;
	uint32_t state = link_report_state(link), steps = 0;

	if (state == WH_WEIGHTS_UNUSED || link->node == weights->me)
		return;
	put(out, "%s: %s", weights->plan->cluster.nodes[link->node].name, states[state]);
	if (state != WH_WEIGHTS_CONNECTED && link->error[0])
		put(out, " (%s)", link->error);
	if (link->head.published)
		put(out, ", published version %" PRIu64, link->head.published);
	if (weights->node_regions[1][link->node] && state == WH_WEIGHTS_CONNECTED)
		put(out, ", has version %" PRIu64, wh_link_whole(link));
	for (uint32_t i = 0; i < weights->own_count; i++)
		steps += weights->own[i].node == link->node && weights->attempt.version &&
			 weights->own[i].done < weights->own[i].pieces;
	if (link->bytes)
		put(out, ", %" PRIu64 " bytes read from it by %s", link->bytes,
		    link->route[0] ? link->route : "an unknown route");
	if (steps)
		put(out, ", %" PRIu32 " steps wait for it", steps);
	put(out, "\n");
}

int wh_weights_explain(struct wh_weights *weights, char *text, size_t length)
{
	struct writer out = { .text = text, .room = text ? length : 0 };
	int error = wh_weights_guard(weights, "wh_weights_explain");
	char phases[512];

	if (error)
		return error;
	if (!text && length)
		return wh_fail(EINVAL, "wh_weights_explain: text is NULL");
	pthread_mutex_lock(&weights->lock);
	put(&out, "%s:", wh_engine_name(weights->engine));
	if (weights->is[0])
		put(&out, " source, version %" PRIu64 "%s", weights->published,
		    weights->offered   ? "" :
		    weights->published ? " retracted" :
					 "");
	if (weights->is[1])
		put(&out, "%s target, version %" PRIu64, weights->is[0] ? ";" : "",
		    weights->current);
	if (weights->attempt.version)
		put(&out, ", receives version %" PRIu64 ": %" PRIu64 " of %" PRIu64 " bytes",
		    weights->attempt.version, weights->attempt.bytes, weights->own_bytes);
	else if (weights->is[1] && weights->current && weights->pins[1 - weights->current_buffer])
		put(&out, ", readers keep the version before: the next one waits");
	put(&out, "\n");
	wh_phases_text(&weights->phases, phases, sizeof(phases));
	put(&out, "%s", phases);
	put(&out,
	    "woken %" PRIu64 " times by the tick alone, which found something to do %" PRIu64
	    " times\n",
	    weights->ticks, weights->ticks_found);
	if (weights->arrived_after)
		put(&out,
		    "all targets were seen to have version %" PRIu64
		    " %.3f ms after it was published\n",
		    weights->published, (double)weights->arrived_after / 1e6);
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++)
		explain_link(&out, &weights->links[i]);
	pthread_mutex_unlock(&weights->lock);
	return out.length < INT32_MAX ? (int)out.length : INT32_MAX;
}
