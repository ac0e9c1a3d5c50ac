/* SPDX-License-Identifier: Apache-2.0 */
/* What published memory must hold, byte by byte, by the memory model's rules (transfer.h). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "program.h"

static size_t block_offset(int block)
{
	return PROGRAM_GAP + (size_t)block * ((size_t)sim_options.block + PROGRAM_GAP);
}

size_t target_offset(const struct op *op)
{
	return block_offset(op->block) + op->offset;
}

struct block *target_block(const struct op *op)
{
	return &op->target->block[op->block];
}

/* Bytes 8i to 8i+7 of a pattern. */
static uint64_t pattern_word(uint64_t stamp, size_t i)
{
	uint64_t word = (stamp + i) * 0x9e3779b97f4a7c15ull;

	return word ^ word >> 32;
}

static uint8_t pattern(uint64_t stamp, size_t i)
{
	return (uint8_t)(pattern_word(stamp, i / 8) >> 8 * (i % 8));
}

void pattern_fill(uint8_t *out, uint64_t stamp, size_t length)
{
	size_t i = 0;

	for (; i + 8 <= length; i += 8) {
		uint64_t word = pattern_word(stamp, i / 8);

		memcpy(out + i, &word, 8);
	}
	for (; i < length; i++)
		out[i] = pattern(stamp, i);
}

size_t pattern_differs(const uint8_t *bytes, uint64_t stamp, size_t length)
{
	size_t i = 0;

	for (; i + 8 <= length; i += 8) {
		uint64_t word = pattern_word(stamp, i / 8);

		if (memcmp(bytes + i, &word, 8) != 0)
			break;
	}
	while (i < length && bytes[i] == pattern(stamp, i))
		i++;
	return i;
}

/* ---- whose bytes ----------------------------------------------------------------------------- */

static void block_print(const struct block *block, const uint8_t *bytes, size_t offset,
			size_t length)
{
	for (int i = block->past_count - 1; i >= 0 && i >= block->past_count - PROGRAM_PAST; i--) {
		const struct past *p = &block->past[i % PROGRAM_PAST];
		size_t from = offset > p->offset ? offset : p->offset;
		size_t end = p->offset + p->length;
		size_t same = 0, all = 0;

		end = offset + length < end ? offset + length : end;
		for (size_t j = from; j < end; j++, all++)
			same += bytes[j - offset] == pattern(p->stamp, j - p->offset);
		fprintf(stderr,
			"  batch %d of node %d wrote %zu at %zu, submitted %.6f, ended %.6f with "
			"%d: %zu of %zu bytes are its\n",
			p->batch, p->node, p->length, p->offset, (double)p->submitted / 1e9,
			(double)p->ended / 1e9, p->status, same, all);
	}
}

void target_print(const struct op *op, const uint8_t *bytes)
{
	block_print(target_block(op), bytes, op->offset, op->length);
}

/* Bytes that nobody may have written since the shadow was taken. */
static void compare(const struct target *target, int block, size_t from, size_t length,
		    const char *what)
{
	size_t i = from;

	if (!memcmp(target->memory + from, target->shadow + from, length))
		return;
	while (target->memory[i] == target->shadow[i])
		i++;
	block_print(&target->block[block], target->memory + block_offset(block), 0,
		    (size_t)sim_options.block);
	sim_fail("bytes", "%s: byte %zu of %s has changed: %02x, was %02x", target->name, i, what,
		 target->memory[i], target->shadow[i]);
}

void target_check(const struct target *target)
{
	size_t size = (size_t)sim_options.block;

	if (target->dead || !target->memory)
		return;
	for (int i = 0; i < place_count() * PROGRAM_BLOCKS; i++) {
		const struct block *block = &target->block[i];
		size_t from = block_offset(i), behind = block->offset + block->length;

		compare(target, i, from - PROGRAM_GAP, PROGRAM_GAP, "a gap");
		if (block->tainted)
			continue;
		if (!block->busy) {
			compare(target, i, from, size, "a block at rest");
			continue;
		}
		compare(target, i, from, block->offset, "a block before the write");
		compare(target, i, from + behind, size - behind, "a block behind the write");
	}
}

void model_check_all(void)
{
	for (int i = 0; i < program_count(); i++) {
		const struct program *program = program_at(i);

		for (int j = 0; j < PROGRAM_TARGETS; j++)
			if (program->targets[j])
				target_check(program->targets[j]);
		for (int j = 0; j < PROGRAM_BATCHES; j++)
			batch_check(&program->batches[j]);
	}
}

/* ---- the end of a transfer ------------------------------------------------------------------- */

static void settle_write(const struct op *op, int status, bool may_come_late)
{
	struct target *target = op->target;
	size_t from = target_offset(op), bad;
	uint8_t *memory = target->memory + from, *shadow = target->shadow + from;

	if (!status) {
		bad = pattern_differs(memory, op->stamp, op->length);
		if (bad < op->length) {
			target_print(op, memory);
			sim_fail("bytes",
				 "%s: byte %zu of %zu that were written with success is not "
				 "there: %02x, should be %02x; the memory is %s",
				 target->name, bad, op->length, memory[bad],
				 pattern(op->stamp, bad),
				 memcmp(memory, shadow, op->length) ? "other bytes" : "as before");
		}
	} else if (may_come_late) {
		target_block(op)->tainted = true;
		return;
	}
	for (size_t i = 0; status && i < op->length; i++)
		if (memory[i] != shadow[i] && memory[i] != pattern(op->stamp, i))
			sim_fail("bytes",
				 "%s: byte %zu of a write that ended with %d is neither old nor "
				 "new",
				 target->name, i, status);
	memcpy(shadow, memory, op->length);
	if (may_come_late)
		target_block(op)->tainted = true;
}

static void settle_read(const struct op *op, const uint8_t *local)
{
	const struct target *target = op->target;
	const uint8_t *shadow = target->shadow + target_offset(op);

	if (target_block(op)->tainted || !memcmp(local, shadow, op->length))
		return;
	target_print(op, local);
	sim_fail("bytes", "%s: %zu bytes at %zu that were read with success are others",
		 target->name, op->length, target_offset(op));
}

void model_settle(const struct op *op, const uint8_t *local, int status, bool may_come_late,
		  const struct past *past)
{
	struct block *block = target_block(op);

	block->busy = false;
	if (op->kind == WH_READ) {
		if (!status)
			settle_read(op, local);
		return;
	}
	block->past[block->past_count++ % PROGRAM_PAST] = *past;
	if (!op->target->dead)
		settle_write(op, status, may_come_late);
}

/* ---- targets --------------------------------------------------------------------------------- */

/* Memory that other processes can map. `rest`: bytes behind the region. False: there is none. */
static bool target_allocate_shared(struct program *program, struct target *target, size_t rest)
{
	void *base;

	if (wh_memory_alloc(program->engine, target->size + rest, NULL, &base)) {
		sim_trace("wh_memory_alloc: %s", wh_error_text());
		return false;
	}
	target->allocated = true;
	target->rest_length = rest;
	target->mapped = target->size + rest;
	target->base = target->memory = base;
	return true;
}

static void target_allocate(struct program *program, struct target *target)
{
	bool shared = sim_options.shared > 1 || (sim_options.shared && sim_draw_work(2));
	size_t rest = sim_options.shared == 3 ? sim_draw_work(8192) : 0;

	target->size = PROGRAM_GAP + (size_t)place_count() * PROGRAM_BLOCKS *
					     ((size_t)sim_options.block + PROGRAM_GAP);
	if (sim_draw_work(2)) /* the last block ends where the region ends */
		target->size -= PROGRAM_GAP;
	target->file = (int)sim_draw_work(100) < sim_options.files;
	if (!target->file && sim_options.gpus && (int)sim_draw_work(100) < sim_options.gpu_regions)
		target->memory = program_gpu_memory(program, target->size, &target->address);
	target->on_gpu = target->memory;
	if (target->on_gpu) {
		sim_trace("%s is on a GPU", target->name);
	} else if (target->file) {
		char path[64];

		snprintf(path, sizeof(path), "/sim/%s", target->name);
		target->memory = sim_file_new(place_host(program->place), path, target->size);
	} else if (!shared || !target_allocate_shared(program, target, rest)) {
		/* Never the same addresses again: a transfer by address would reach the new region.
		 */
		target->mapped = (target->size + 8191) / 4096 * 4096;
		target->base = mmap(NULL, target->mapped, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		target->memory =
			target->base + 8 * sim_draw_work((target->mapped - target->size) / 8);
	}
	if (!target->on_gpu)
		target->address = (uintptr_t)target->memory;
	target->shadow = malloc(target->size);
	pattern_fill(target->memory, sim_draw_work(UINT64_MAX), target->size);
	memcpy(target->shadow, target->memory, target->size);
}

/* Who touches its memory from now on faults, and its addresses stay taken: munmap() keeps those
 * of memory that libwherry has allocated. */
void target_seal(struct program *program, struct target *target)
{
	int rc;

	target->dead = true;
	target->died = sim_time;
	target->memory = NULL;
	if (!target->file && sim_gpu_pinned(program->node, target->base, target->mapped))
		sim_fail("gpu", "%s is still locked for GPUs", target->name);
	if (target->on_gpu)
		sim_gpu_free(program->node, target->address);
	target->address = 0;
	if (target->file || target->on_gpu)
		return;
	if (!target->allocated) {
		if (mmap(target->base, target->mapped, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
			 0) == MAP_FAILED)
			abort();
		return;
	}
	rc = wh_memory_free(program->engine, target->base);
	if (rc)
		sim_fail("call", "wh_memory_free = %d: %s", rc, wh_error_text());
}

static int target_register(struct program *program, struct target *target,
			   const struct wh_region_options *region)
{
	const struct wh_file_options file = { .size = sizeof(file),
					      .flags = WH_FILE_WRITE,
					      .durable = (uint32_t)sim_draw_work(2),
					      .region = region };

	char path[64];

	snprintf(path, sizeof(path), "/sim/%s", target->name);
	return target->file ?
		       wh_file_register(program->engine, path, &file, &target->region) :
		       wh_region_register(program->engine, (void *)(uintptr_t)target->address,
					  target->size, region, &target->region);
}

struct target *target_new(struct program *program, int slot, int generation)
{
	struct target *target = calloc(1, sizeof(*target));

	target->node = program->node;
	target->generation = generation;
	snprintf(target->name, sizeof(target->name), "n%d.r%d.g%d", program->node, slot,
		 generation);
	target_allocate(program, target);
	return target;
}

struct target *target_open(struct program *program, int slot, int generation)
{
	struct wh_region_options options = {
		.size = sizeof(options),
		.access = WH_ACCESS_READ | WH_ACCESS_WRITE | WH_ACCESS_LIST,
	};
	struct target *target = target_new(program, slot, generation);
	int error;

	options.name = target->name;
	error = target_register(program, target, &options);
	if (error) {
		sim_trace("register: %d %s", error, wh_error_text());
		target_seal(program, target);
		return NULL;
	}
	target->remote = wh_region_id(target->region);
	program->targets[slot] = target;
	if (sim_draw_work(2))
		target_toggle_rest(program, target);
	return target;
}

/* May -EBUSY be? Memory may be kept by a peer of this host that has not let go of it, a file by its
 * disk, a GPU's by a copy, and all that a GPU copies by one that stands still, or whose work is
 * late (memory.h). In the end nothing may be kept: `must` of withdraw(). */
static bool may_be_busy(const struct program *program, const struct target *target, int64_t stalled)
{
	return target->file || target->on_gpu || strstr(wh_error_text(), "can still access it") ||
	       (strstr(wh_error_text(), "still being copied") &&
		(stalled > program->timeout / 2 || sim_options.gpu_late));
}

/* False: -EBUSY, and it is still there. */
static bool withdraw(struct program *program, const struct target *target, struct wh_region *region,
		     bool must)
{
	struct call call = call_begin(program);
	int rc = wh_region_unregister(region);

	sim_trace("unregister: %d %s", rc, rc ? wh_error_text() : "");
	call_end_with_gpus(&call, "wh_region_unregister", rc, program->timeout);
	if (rc && (rc != -EBUSY || must || !may_be_busy(program, target, call_stalled_gpus(&call))))
		sim_fail("call", "wh_region_unregister = %d: %s", rc, wh_error_text());
	return !rc;
}

void target_toggle_rest(struct program *program, struct target *target)
{
	const struct wh_region_options options = {
		.size = sizeof(options),
		.access = WH_ACCESS_READ | WH_ACCESS_WRITE,
	};

	if (!target->rest_length)
		return;
	if (target->rest) {
		if (withdraw(program, target, target->rest, false))
			target->rest = NULL;
	} else if (wh_region_register(program->engine, target->memory + target->size,
				      target->rest_length, &options, &target->rest)) {
		target->rest = NULL;
	}
}

bool target_close(struct program *program, int slot, bool must)
{
	struct target *target = program->targets[slot];

	target_check(target);
	if (target->rest && !withdraw(program, target, target->rest, must))
		return false;
	target->rest = NULL;
	/* A disk that hangs keeps it; wh_engine_close() frees it. */
	if (!withdraw(program, target, target->region, must && !target->file) &&
	    !(must && target->file))
		return false;
	target_check(target);
	target_seal(program, target);
	program->targets[slot] = NULL;
	return true;
}
