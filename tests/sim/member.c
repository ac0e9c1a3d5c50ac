/* SPDX-License-Identifier: Apache-2.0 */
/* Members of weights: publishers, whose memory changes as soon as they may change it, and
 * receivers, which leave, come back, cancel, and keep views. Of each version everybody knows each
 * byte. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "program.h"

#define TENSORS 2
#define COLUMNS 251
#define SLICES (SIM_HOSTS * TENSORS)
#define HEALED_MOST (120 * SIM_SEC) /* until the last version is everywhere */
#define BYE_MOST SIM_SEC /* docs/weights.md: what the last hello takes */
#define CLOSE_TRIES 20
/* A cancel waits for reads that run, and a link of these worlds may need so long for one. */
#define READ_MOST (20 * SIM_SEC)

/* The part of a tensor that a member has. */
struct part {
	int tensor;
	uint64_t begin[2], end[2]; /* rows, columns */
	size_t offset;
};

/* One side of the layouts; the same for all members. */
struct side {
	struct wh_weights_layout layout;
	struct wh_weights_engine engines[SIM_HOSTS];
	struct wh_weights_region regions[SIM_HOSTS];
	struct wh_weights_slice slices[SLICES];
	struct part parts[SLICES];
	char names[SIM_HOSTS][16], urls[SIM_HOSTS][64];
	int first_host;
};

struct member {
	struct wh_weights *weights;
	uint8_t *memory; /* of a publisher */
	size_t mapped;
	uint64_t published; /* it holds this version; 0: none, it may change */
	uint64_t seen; /* the newest version that a receiver has had */
	struct wh_weights_view views[2];
	int view_count;
};

static struct wh_weights_tensor tensors[TENSORS];
static uint64_t shape[2];
static struct side sides[2]; /* sources, targets */
static bool made;
static uint64_t newest; /* version that some publisher has published */
static uint64_t last; /* version that all have at the end; 0: not chosen */
static uint64_t reached[SIM_HOSTS]; /* by place: the newest version that a receiver has ever had */

int member_hosts(void)
{
	return sim_options.publishers + sim_options.weights;
}

static bool publishes(const struct program *program)
{
	return program->place < sim_options.publishers;
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* Which rows and columns the k-th of `count` members has. */
static void part_cut(struct part *part, bool source, int k, int count)
{
	uint64_t n = (uint64_t)count, i = (uint64_t)k;

	*part = (struct part){ .end = { shape[0], shape[1] } };
	if (!source && sim_options.weights_shape == 1) {
		/* columns, each of which two members want */
		part->begin[1] = shape[1] * i / (n + 1);
		part->end[1] = shape[1] * (i + 2) / (n + 1);
	} else if (sim_options.weights_shape && (source || sim_options.weights_shape == 2)) {
		part->begin[0] = shape[0] * i / n;
		part->end[0] = shape[0] * (i + 1) / n;
	}
}

static size_t part_bytes(const struct part *part)
{
	return (size_t)((part->end[0] - part->begin[0]) * (part->end[1] - part->begin[1]));
}

static void side_make(struct side *side, bool source, int first, int count)
{
	bool together = sim_draw_work(3) == 0;

	for (int k = 0; k < count; k++) {
		size_t offset = sim_draw_work(3) * 8;

		snprintf(side->names[k], sizeof(side->names[k]), "place%d", first + k);
		program_url(first + k, side->urls[k], sizeof(side->urls[k]));
		side->engines[k].name = side->names[k];
		side->engines[k].host = together ? "together" : NULL;
		/* A receiver that nobody knows comes by itself. */
		side->engines[k].url = source || sim_draw_work(2) ? side->urls[k] : NULL;
		for (int t = 0; t < TENSORS; t++) {
			struct part *part = &side->parts[k * TENSORS + t];

			part_cut(part, source, k, count);
			part->tensor = t;
			part->offset = offset;
			side->slices[k * TENSORS + t] = (struct wh_weights_slice){
				.tensor = (uint32_t)t,
				.region = (uint32_t)k,
				.offset = offset,
				.begin = part->begin,
				.end = part->end,
			};
			offset += part_bytes(part);
		}
		side->regions[k] = (struct wh_weights_region){ .name = "all",
							       .bytes = offset,
							       .engine = (uint32_t)k };
	}
	side->first_host = first;
	side->layout = (struct wh_weights_layout){
		.size = sizeof(side->layout),
		.tensors = tensors,
		.engines = side->engines,
		.regions = side->regions,
		.slices = side->slices,
		.tensor_count = TENSORS,
		.engine_count = (uint32_t)count,
		.region_count = (uint32_t)count,
		.slice_count = (uint32_t)(count * TENSORS),
	};
}

static void layouts_make(void)
{
	static char names[TENSORS][8];

	if (made)
		return;
	made = true;
	shape[0] = (uint64_t)sim_options.weights_rows;
	shape[1] = COLUMNS;
	for (int t = 0; t < TENSORS; t++) {
		snprintf(names[t], sizeof(names[t]), "t%d", t);
		tensors[t] = (struct wh_weights_tensor){
			.name = names[t], .type = "u8", .shape = shape, .dims = 2
		};
	}
	side_make(&sides[0], true, 0, sim_options.publishers);
	side_make(&sides[1], false, sim_options.publishers, sim_options.weights);
}

static struct side *side_of(const struct program *program)
{
	return &sides[publishes(program) ? 0 : 1];
}

static int index_of(const struct program *program)
{
	return program->place - side_of(program)->first_host;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint64_t stamp_of(uint64_t version, const struct part *part, uint64_t row)
{
	return version << 40 | (uint64_t)part->tensor << 32 | row << 12;
}

static void version_fill(const struct program *program, uint8_t *memory, uint64_t version)
{
	const struct part *part = &side_of(program)->parts[index_of(program) * TENSORS];
	uint8_t row[COLUMNS];

	for (int t = 0; t < TENSORS; t++, part++) {
		size_t length = (size_t)(part->end[1] - part->begin[1]);
		uint8_t *at = memory + part->offset;

		for (uint64_t r = part->begin[0]; r < part->end[0]; r++, at += length) {
			pattern_fill(row, stamp_of(version, part, r), COLUMNS);
			memcpy(at, row + part->begin[1], length);
		}
	}
}

static void version_check(const struct program *program, const uint8_t *memory, uint64_t version,
			  const char *when)
{
	const struct part *part = &side_of(program)->parts[index_of(program) * TENSORS];
	uint8_t row[COLUMNS];

	for (int t = 0; t < TENSORS; t++, part++) {
		size_t length = (size_t)(part->end[1] - part->begin[1]);
		const uint8_t *at = memory + part->offset;

		for (uint64_t r = part->begin[0]; r < part->end[0]; r++, at += length) {
			pattern_fill(row, stamp_of(version, part, r), COLUMNS);
			if (memcmp(at, row + part->begin[1], length) != 0)
				sim_fail("bytes",
					 "%s: version %llu of node %d has other bytes in row %llu "
					 "of tensor %d",
					 when, (unsigned long long)version, program->node,
					 (unsigned long long)r, t);
		}
	}
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void memory_new(struct program *program, struct member *member)
{
	size_t bytes = side_of(program)->regions[index_of(program)].bytes;

	member->mapped = (bytes + 4095) / 4096 * 4096;
	member->memory = mmap(NULL, member->mapped, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static bool member_open(struct program *program)
{
	struct member *member = calloc(1, sizeof(*member));
	struct wh_weights_memory memory = { .region = "all" };
	struct wh_weights_options options = {
		.size = sizeof(options),
		.piece = (uint64_t)sim_options.piece,
	};
	struct call call;
	int rc;

	layouts_make();
	options.sources = &sides[0].layout;
	options.targets = &sides[1].layout;
	if (publishes(program)) {
		memory_new(program, member);
		memory.address[0] = member->memory;
		options.memory = &memory;
		options.memory_count = 1;
	}
	call = call_begin(program);
	rc = wh_weights_open(program->engine, &options, &member->weights);
	sim_trace("weights open: %d %s", rc, rc ? wh_error_text() : "");
	/* One that fails withdraws the program's memory, and that of the first buffers. */
	call_end(&call, "wh_weights_open", rc, rc ? 2 * program->timeout : 0);
	if (!rc) {
		program->member = member;
		return true;
	}
	if (program_phase != PHASE_FAULTS && sim_time - program_healed_at > HEALED_MOST)
		sim_fail("hang", "weights cannot be opened: %s", wh_error_text());
	if (member->memory)
		munmap(member->memory, member->mapped);
	free(member);
	return false;
}

static void view_drop(struct program *program)
{
	struct member *member = program->member;
	struct wh_weights_view *view = &member->views[member->view_count - 1];
	struct call call;
	int rc;

	version_check(program, view->addresses[0], view->version, "before it is released");
	call = call_begin(program);
	rc = wh_weights_release(member->weights, view);
	if (rc)
		sim_fail("call", "wh_weights_release = %d: %s", rc, wh_error_text());
	call_end(&call, "wh_weights_release", rc, 0);
	member->view_count--;
}

static void member_close(struct program *program)
{
	struct member *member = program->member;
	int64_t limit = BYE_MOST + 2 * program->timeout;
	int rc;

	for (int i = 0; i < CLOSE_TRIES; i++) {
		struct call call = call_begin(program);
		bool kept = member->view_count != 0;

		rc = wh_weights_close(member->weights);
		sim_trace("weights close: %d", rc);
		call_end(&call, "wh_weights_close", rc, limit);
		if (!kept)
			break;
		if (rc != -EBUSY)
			sim_fail("call", "wh_weights_close = %d with a view", rc);
		view_drop(program);
	}
	if (rc)
		sim_fail("call", "wh_weights_close = %d: %s", rc, wh_error_text());
	if (member->memory)
		munmap(member->memory, member->mapped);
	free(member);
	program->member = NULL;
}

void member_leave(struct program *program)
{
	if (program->member)
		member_close(program);
}

/* ---- publishers ------------------------------------------------------------------------------ */

static void retract(struct program *program)
{
	struct member *member = program->member;
	struct call call = call_begin(program);
	int rc = wh_weights_retract(member->weights);

	if (rc)
		sim_fail("call", "wh_weights_retract = %d: %s", rc, wh_error_text());
	call_end(&call, "wh_weights_retract", rc, 0);
	member->published = 0;
	/* Who still reads it gets bytes of no version. */
	memset(member->memory, (int)sim_draw_work(256), member->mapped);
}

static void publish(struct program *program, uint64_t version)
{
	struct member *member = program->member;
	struct call call;
	int rc;

	version_fill(program, member->memory, version);
	newest = version > newest ? version : newest;
	call = call_begin(program);
	rc = wh_weights_publish(member->weights, version);
	sim_trace("publish %llu: %d", (unsigned long long)version, rc);
	if (rc)
		sim_fail("call", "wh_weights_publish = %d: %s", rc, wh_error_text());
	call_end(&call, "wh_weights_publish", rc, 0);
	member->published = member->seen = version;
}

/* A refusal is none of these: all members have the same layouts. */
static bool waited(const struct call *call, const char *name, int rc, int64_t timeout)
{
	call_end(call, name, rc, timeout);
	if (rc && rc != -EAGAIN)
		sim_fail("call", "%s = %d: %s", name, rc, wh_error_text());
	return !rc;
}

/* True: all targets that it counts have the version. */
static bool publisher_wait(struct program *program, int64_t timeout)
{
	struct member *member = program->member;
	struct call call = call_begin(program);
	uint64_t version = member->published;
	int rc = wh_weights_wait(member->weights, version, timeout);

	return waited(&call, "wh_weights_wait", rc, timeout);
}

static void publisher_step(struct program *program)
{
	struct member *member = program->member;
	uint64_t what = sim_draw_work(6);

	if (!member->published && what <= 3)
		/* What another one has published, or the next. */
		publish(program, newest > member->seen ? newest : newest + 1);
	else if (member->published && what <= 2)
		publisher_wait(program, (int64_t)sim_draw_work(300 * SIM_MS));
	else if (member->published && what == 3)
		retract(program);
	else
		sim_sleep((int64_t)sim_draw_work(30 * SIM_MS));
}

/* ---- receivers ------------------------------------------------------------------------------- */

static void view_check(struct program *program, const struct wh_weights_view *view, uint64_t after)
{
	struct member *member = program->member;

	if (view->version <= after || view->version < member->seen)
		sim_fail("version", "node %d gets version %llu, after %llu and %llu", program->node,
			 (unsigned long long)view->version, (unsigned long long)after,
			 (unsigned long long)member->seen);
	if (view->version > newest)
		sim_fail("version", "node %d gets version %llu, which nobody has published",
			 program->node, (unsigned long long)view->version);
	if (view->count != 1 || view->buffer > 1)
		sim_fail("version", "a view of %u regions in buffer %u", view->count, view->buffer);
	version_check(program, view->addresses[0], view->version, "a new view");
	program_counts.versions += view->version > member->seen;
	member->seen = view->version;
	if (view->version > reached[program->place])
		reached[program->place] = view->version;
}

static void acquire(struct program *program, int64_t timeout)
{
	struct member *member = program->member;
	uint64_t after = sim_draw_work(3) ? member->seen : 0;
	struct wh_weights_view view = { .size = sizeof(view) };
	struct call call = call_begin(program);
	int rc = wh_weights_acquire(member->weights, after, timeout, &view);

	if (!waited(&call, "wh_weights_acquire", rc, timeout))
		return;
	view_check(program, &view, after);
	member->views[member->view_count++] = view;
}

static void cancel(struct program *program)
{
	struct member *member = program->member;
	uint64_t version = newest - sim_draw_work(newest + 1);
	struct wh_weights_info info = { .size = sizeof(info) };
	struct call call = call_begin(program);
	int rc = wh_weights_cancel(member->weights, version);

	sim_trace("cancel %llu: %d", (unsigned long long)version, rc);
	if (rc)
		sim_fail("call", "wh_weights_cancel = %d: %s", rc, wh_error_text());
	call_end(&call, "wh_weights_cancel", rc, program->timeout + READ_MOST);
	rc = wh_weights_info(member->weights, &info);
	if (!rc && info.receiving && info.receiving <= version)
		sim_fail("cancel", "version %llu is being received, cancelled was %llu",
			 (unsigned long long)info.receiving, (unsigned long long)version);
}

static void receiver_step(struct program *program)
{
	struct member *member = program->member;
	uint64_t what = sim_draw_work(40);

	if (what < 16 && member->view_count < 2)
		acquire(program, (int64_t)sim_draw_work(200 * SIM_MS));
	else if (what < 26 && member->view_count)
		view_drop(program);
	else if (what == 26)
		cancel(program);
	else
		sim_sleep((int64_t)sim_draw_work(20 * SIM_MS));
}

/* ---- both ------------------------------------------------------------------------------------ */

/* What a member says of the others: no receiver has had more than it ever had. */
static void ask(struct program *program)
{
	struct member *member = program->member;
	struct wh_weights_info info = { .size = sizeof(info) };
	struct wh_weights_member other = { .size = sizeof(other) };
	struct call call = call_begin(program);
	char text[2000];
	int rc = wh_weights_info(member->weights, &info);

	if (rc || info.members != (uint32_t)member_hosts() || info.received > info.bytes ||
	    info.current < (publishes(program) ? 0 : member->seen) || info.current > newest)
		sim_fail("call", "wh_weights_info = %d: current %llu, %llu of %llu bytes", rc,
			 (unsigned long long)info.current, (unsigned long long)info.received,
			 (unsigned long long)info.bytes);
	for (uint32_t i = 0; i < info.members && !wh_weights_member(member->weights, i, &other);
	     i++)
		if (other.current > newest || other.published > newest)
			sim_fail("version", "member '%s' is said to have version %llu", other.name,
				 (unsigned long long)other.current);
	wh_weights_explain(member->weights, text, sizeof(text));
	call_end(&call, "wh_weights_info, _member, _explain", rc, 0);
}

void member_work(struct program *program)
{
	if (!program->member) {
		/* It comes late. */
		sim_sleep((int64_t)sim_draw_work(100 * SIM_MS));
		if (!program->crashed && sim_draw_work(4))
			member_open(program);
		return;
	}
	if (!sim_draw_work(12))
		ask(program);
	if (publishes(program))
		publisher_step(program);
	else
		receiver_step(program);
	if (!sim_draw_work(60))
		member_close(program);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void explain_and_fail(struct program *program, const char *what)
{
	static char text[4000];

	for (int i = 0; i < program_count(); i++) {
		struct program *other = program_at(i);

		if (other->crashed || !other->member)
			continue;
		wh_weights_explain(other->member->weights, text, sizeof(text));
		fprintf(stderr, "node %d: %s\n", other->node, text);
	}
	sim_fail("hang", "%lld s after all was healed node %d has no %s of version %llu",
		 HEALED_MOST / SIM_SEC, program->node, what, (unsigned long long)last);
}

static void publisher_drain(struct program *program)
{
	struct member *member = program->member;

	if (!last)
		last = newest + 1;
	if (member->published)
		retract(program);
	publish(program, last);
	while (!publisher_wait(program, SIM_SEC))
		if (sim_time - program_healed_at > HEALED_MOST)
			explain_and_fail(program, "confirmation");
}

static void receiver_drain(struct program *program)
{
	struct member *member = program->member;

	while (member->seen < last || !last) {
		if (member->view_count)
			view_drop(program);
		if (sim_time - program_healed_at > HEALED_MOST)
			explain_and_fail(program, "bytes");
		acquire(program, SIM_SEC);
	}
}

void member_drain(struct program *program)
{
	while (!program->member && !member_open(program))
		sim_sleep(50 * SIM_MS);
	if (publishes(program))
		publisher_drain(program);
	else
		receiver_drain(program);
}
