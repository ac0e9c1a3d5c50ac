/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications: exactly once, in order, after their bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

#define LONGEST 8192

static struct note **notes; /* by the lower half of their tags */
static uint32_t count, room;

void note_attach(struct batch *batch)
{
	struct note *note = calloc(1, sizeof(*note));
	uint8_t bytes[LONGEST];

	note->from = batch->program->node;
	note->to = -1;
	note->status = 1;
	note->tag = sim_draw_work(4) << 32 | count;
	note->length = sim_draw_work(10) ? sim_draw_work(200) : sim_draw_work(LONGEST);
	memcpy(note->ops, batch->ops, sizeof(note->ops));
	note->op_count = batch->op_count;
	pattern_fill(bytes, note->tag, note->length);
	if (wh_batch_notify(batch->batch, note->tag, bytes, note->length)) {
		free(note);
		return;
	}
	if (count == room)
		notes = sim_grow(notes, room += 1024, sizeof(*notes));
	notes[count++] = note;
	batch->note = note;
	batch->noted = true;
}

static bool note_matches(const struct note *note, const struct wh_notification_filter *filter)
{
	return (note->tag & filter->tag_mask) == (filter->tag & filter->tag_mask);
}

/* The bytes of its batch are there, as long as that has not ended: a later write may have changed
 * them since. */
static void check_bytes(const struct note *note)
{
	for (int i = 0; i < note->op_count && note->status == 1; i++) {
		const struct op *op = &note->ops[i];
		const uint8_t *memory = op->target->memory + target_offset(op);
		size_t bad;

		if (op->kind != WH_WRITE || op->target->dead || target_block(op)->tainted)
			continue;
		bad = pattern_differs(memory, op->stamp, op->length);
		if (bad == op->length)
			continue;
		target_print(op, memory);
		sim_fail("notification", "notification %u came before byte %zu of its batch",
			 (uint32_t)note->tag, bad);
	}
}

/* Those that were complete before this one was submitted have come before. */
static void check_order(const struct note *note, const struct wh_notification_filter *filter)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct note *other = notes[i];

		if (other->from == note->from && other->to == note->to && other->status == 0 &&
		    !other->received && other->completed < note->submitted &&
		    note_matches(other, filter))
			sim_fail("notification", "notification %u overtook %u", (uint32_t)note->tag,
				 i);
	}
}

static void note_received(struct program *program, const struct wh_notification *got,
			  const uint8_t *bytes, const struct wh_notification_filter *filter)
{
	uint32_t id = (uint32_t)got->tag;
	struct note *note;

	if (id >= count || notes[id]->tag != got->tag)
		sim_fail("notification", "nobody sent tag %llx", (unsigned long long)got->tag);
	note = notes[id];
	sim_trace("notification %u taken, from node %d", id, note->from);
	if (note->received++)
		sim_fail("notification", "notification %u was received %d times", id,
			 note->received);
	if (note->length != got->length ||
	    pattern_differs(bytes, note->tag, note->length) < note->length)
		sim_fail("notification", "notification %u has other bytes", id);
	if (note->to != program->node)
		sim_fail("notification", "notification %u came to node %d, it was for %d", id,
			 program->node, note->to);
	if (!note_matches(note, filter))
		sim_fail("notification", "notification %u does not match the filter", id);
	check_order(note, filter);
	check_bytes(note);
	program_counts.notes++;
}

bool note_take(struct program *program, int64_t timeout)
{
	uint8_t bytes[LONGEST];
	struct wh_notification got = { .size = sizeof(got),
				       .buffer = bytes,
				       .capacity = sim_draw_work(8) ? sizeof(bytes) : 4 };
	struct wh_notification_filter filter = { .size = sizeof(filter) };
	struct call call;
	int rc;

	if (!sim_draw_work(4) && program_phase == PHASE_FAULTS) {
		filter.tag = sim_draw_work(4) << 32;
		filter.tag_mask = 3ull << 32;
	}
	call = call_begin(program);
	rc = wh_engine_notification(program->engine, &filter, &got, timeout);
	call_end(&call, "wh_engine_notification", rc, timeout);
	if (rc == -EAGAIN)
		return false;
	if (rc == -EMSGSIZE) {
		uint64_t tag = got.tag;

		got = (struct wh_notification){ .size = sizeof(got),
						.buffer = bytes,
						.capacity = sizeof(bytes) };
		rc = wh_engine_notification(program->engine, &filter, &got, 0);
		if (rc || got.tag != tag)
			sim_fail("notification", "after -EMSGSIZE: %d, another notification", rc);
	}
	if (rc)
		sim_fail("call", "wh_engine_notification = %d: %s", rc, wh_error_text());
	note_received(program, &got, bytes, &filter);
	sim_worked(); /* hundreds may have waited */
	return true;
}

void note_check_received(const struct program *program)
{
	for (uint32_t i = 0; i < count; i++)
		if (notes[i]->to == program->node && notes[i]->status == 0 && !notes[i]->received)
			sim_fail("notification",
				 "notification %u of a batch that succeeded was never received", i);
}
