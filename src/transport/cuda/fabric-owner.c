/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport cuda: the owner's side of fabric handles, which answers another host's FABRIC_ASK. On
 * loop 0, but for region_coming.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "net/control.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/cuda/fabric.h"
#include "transport/transport.h"
#include "util/config.h"
#include "util/error.h"

void wh_fabric_region_coming(struct wh_engine *engine, void *state,
			     const struct wh_registration *registration)
{
	bool fabric = false;
	char why[WH_REFUSAL];

	for (size_t i = 0; i < registration->segment_count; i++)
		fabric |= registration->segments[i].exports & WH_CUDA_EXPORT_FABRIC;
	if (!fabric || wh_fabric_check_setting(engine, why))
		return;
	wh_fail_begin(); /* the reason is given to those who ask for the memory */
	wh_fabric_domains_look(state, why);
	wh_fail_end(0);
}

/* A handle opens all of an allocation: are there bytes in it that the region has not? Behind those
 * that wh_memory_alloc() was asked for nobody keeps any. */
static bool segment_is_whole(const struct wh_region *region, const struct wh_segment *segment)
{
	uint64_t end = segment->base + segment->size;
	const struct wh_allocation *memory = region->memory;

	if (memory && end == (uint64_t)(uintptr_t)memory->base + memory->length)
		end -= memory->length - memory->asked;
	return segment->start == segment->base && segment->start + segment->length >= end;
}

static int owner_refuse_handle(const struct wh_segment *segment, char why[WH_REFUSAL])
{
	const struct wh_cuda_device *device = segment->device;

	if (segment->imported)
		snprintf(why, WH_REFUSAL,
			 "its memory belongs to a third process; only that one can share it");
	else if (!segment->vmm)
		snprintf(why, WH_REFUSAL,
			 "memory of cuMemAlloc and of pools has no fabric handle: allocate it as "
			 "the kind vmm");
	else if (device->fabric && atomic_load(&device->fabric_refused))
		snprintf(why, WH_REFUSAL, "its memory has no fabric handle: %.150s",
			 device->fabric_why);
	else if (!device->fabric)
		snprintf(why, WH_REFUSAL, "%.100s has no fabric handles", device->text);
	else
		snprintf(why, WH_REFUSAL, "its memory was created without a fabric handle");
	return -EOPNOTSUPP;
}

/* Which of the initiator's domains is the segment's GPU in? */
static int owner_find_domain(struct wh_device_mappings *mappings, const struct wh_segment *segment,
			     const struct wh_fabric_ask *ask, uint32_t *out, char why[WH_REFUSAL])
{
	char here[WH_FABRIC_DOMAIN_TEXT], there[WH_FABRIC_DOMAIN_TEXT];
	struct wh_fabric_domain domain;

	if (!wh_fabric_domain_of(mappings, segment->device, &domain, why))
		return -EOPNOTSUPP;
	for (uint32_t i = 0; i < ask->domain_count; i++) {
		if (wh_fabric_domains_equal(&domain, &ask->domains[i])) {
			*out = i;
			return 0;
		}
	}
	wh_fabric_domain_text(&domain, here);
	wh_fabric_domain_text(&ask->domains[0], there);
	snprintf(why, WH_REFUSAL, "its GPU is in another NVLink domain (cluster/clique %s) than %s",
		 here, there);
	return -EOPNOTSUPP;
}

static int owner_check_segment(const struct wh_region *region, const struct wh_segment *segment,
			       const struct wh_fabric_ask *ask, uint32_t *domain,
			       char why[WH_REFUSAL])
{
	struct wh_device_mappings *mappings =
		wh_engine_transport(region->engine, WH_TRANSPORT_CUDA);

	if (!(segment->exports & WH_CUDA_EXPORT_FABRIC) || segment->imported)
		return owner_refuse_handle(segment, why);
	if (!segment_is_whole(region, segment)) {
		snprintf(why, WH_REFUSAL,
			 "a fabric handle opens all of an allocation, and the region is a part: "
			 "register all %llu bytes",
			 (unsigned long long)segment->size);
		return -EOPNOTSUPP;
	}
	return owner_find_domain(mappings, segment, ask, domain, why);
}

/* Answer for one segment of a region that the session may read and write. */
static void owner_export(const struct wh_region *region, uint32_t index,
			 const struct wh_fabric_ask *ask, struct wh_fabric_answer *answer)
{
	const struct wh_registration *registration = region->registration;
	struct wh_exported *e = &answer->exported;
	char why[WH_REFUSAL];
	int error;

	if (index >= registration->segment_count)
		wh_exported_refuse(e, ERANGE, "the region has fewer segments");
	else if (wh_registration_check(registration))
		wh_exported_refuse(e, ESTALE, wh_error_text());
	if (e->error)
		return;
	error = owner_check_segment(region, &registration->segments[index], ask, &answer->domain,
				    why);
	if (error)
		wh_exported_refuse(e, -error, why);
	else if (!wh_exported_begin(region, index, e))
		wh_exported_fabric(wh_engine_cuda(region->engine), &registration->segments[index],
				   e);
	if (e->error)
		answer->domain = 0;
}

static int owner_send(struct wh_session *session, const struct wh_fabric_answer *answer)
{
	uint8_t bytes[WH_FABRIC_ANSWER_MAX];

	return wh_control_send(wh_session_control(session), WH_FRAME_FABRIC_ANSWER, 0, bytes,
			       wh_fabric_answer_encode(bytes, answer));
}

/* 0: the session gets handles of the region, which the caller has entered. Else the reason. */
static int owner_check_session(struct wh_session *session, const struct wh_region_entry *entry,
			       uint8_t access, char why[WH_REFUSAL])
{
	int error = wh_fabric_check_setting(wh_session_engine(session), why);

	if (!entry || !access) {
		snprintf(why, WH_REFUSAL, "not published any more");
		return -ESTALE;
	}
	if (!error && (access & WH_ACCESS_BYTES) != WH_ACCESS_BYTES) {
		snprintf(why, WH_REFUSAL,
			 "a fabric handle lets its holder read and write, and this engine may not "
			 "do both");
		return -EACCES;
	}
	if (!error && !wh_kind_on_gpu(entry->kind)) {
		snprintf(why, WH_REFUSAL, "it is no GPU's memory");
		return -EOPNOTSUPP;
	}
	return error;
}

/* The region is entered while the answers are sent: wh_region_unregister() waits for that, and then
 * for the initiator's confirmation that it has unmapped the region. */
static int owner_answer(struct wh_session *session, const struct wh_fabric_ask *ask)
{
	struct wh_engine *engine = wh_session_engine(session);
	struct wh_fabric_answer answer = { .token = ask->token, .exported = { .id = ask->id } };
	struct wh_region_entry *entry;
	char why[WH_REFUSAL];
	int error = 0, refused;

	wh_engine_hold_regions(engine);
	entry = wh_region_entry_enter(wh_engine_regions(engine), ask->id);
	refused = owner_check_session(session, entry, entry ? wh_session_access(session, entry) : 0,
				      why);
	if (!refused)
		error = wh_session_learn(session, entry);
	wh_engine_release_regions(engine);
	if (refused) {
		wh_exported_refuse(&answer.exported, -refused, why);
		error = owner_send(session, &answer);
	} else if (!error) {
		wh_session_touches(session);
	}
	for (uint32_t n = 0; !refused && !error && n < WH_EXPORTS; n++) {
		struct wh_region *region = wh_container(entry, struct wh_region, entry);
		uint32_t index = ask->segment + n;

		if (n && index == region->registration->segment_count)
			break;
		answer = (struct wh_fabric_answer){ .token = ask->token,
						    .exported = { .id = ask->id } };
		owner_export(region, index, ask, &answer);
		error = owner_send(session, &answer);
		if (answer.exported.error)
			break;
	}
	if (entry)
		wh_region_entry_leave(entry);
	return error;
}

int wh_fabric_session_frame(struct wh_session *session, const struct wh_frame *frame,
			    const uint8_t *payload)
{
	struct wh_fabric_ask ask;
	int error;

	if (frame->type != WH_FRAME_FABRIC_ASK ||
	    wh_fabric_ask_decode(payload, frame->length, &ask))
		return -EPROTO;
	wh_fail_begin(); /* errors of the driver go to the initiator */
	error = owner_answer(session, &ask);
	wh_fail_end(0);
	return error;
}
