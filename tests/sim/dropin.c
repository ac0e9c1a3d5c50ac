/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that use Mooncake's interface (transfer_engine_c.h): engines that reach each other by
 * Wherry's routes, or by Mooncake's TCP protocol. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "compat/mooncake/transfer_engine_c.h"
#include "program.h"

#define BATCHES 6
#define MESSAGES (1 << 14)
#define HEALED_MOST (120 * SIM_SEC) /* until all works, when all is healed */
#define LISTEN_ON (10 * SIM_SEC) /* for what others have sent */
#define PEER_OPEN (5 * SIM_SEC) /* the least that wh_peer_open() waits */
#define DESTROY_MOST (2 * SIM_SEC)

/* The option `mooncake`. */
enum {
	BY_WHERRY = 1, /* engines publish the URL of a Wherry engine */
	BY_MOONCAKE, /* they publish none */
	BY_BOTH, /* every other one does */
};

/* A notification, numbered by its place in the table. */
struct message {
	int place, node; /* for which it was */
	bool ended, completed;
	int received;
	struct op ops[PROGRAM_OPS]; /* of its batch */
	int op_count;
};

struct transfers {
	batch_id_t id;
	bool used, running;
	int place;
	struct op ops[PROGRAM_OPS];
	int op_count;
	uint8_t *local, *after; /* after: as it was at their end, and has to stay */
	size_t size, mapped;
	struct message *message; /* NULL: none */
	int64_t submitted;
};

struct dropin {
	transfer_engine_t engine;
	char name[64];
	struct transfers batches[BATCHES];
	segment_id_t segments[PROGRAM_PLACES]; /* of other places; -1: never opened */
	char names[PROGRAM_PLACES][64]; /* under which they were opened */
};

static struct message messages[MESSAGES];
static int message_count;

/* ---- calls and their bounds ------------------------------------------------------------------ */

/* What connecting to a segment may take: asking for it, then Wherry's connection. */
static int64_t connecting(const struct program *program)
{
	int64_t open = program->timeout > PEER_OPEN ? program->timeout : PEER_OPEN;

	return 2 * (program->timeout + open);
}

static void check_call(const struct call *call, const char *name, int rc, bool good, int64_t limit)
{
	sim_trace("%s: %d %s", name, rc, good ? "" : wherryErrorText());
	if (!good && !call->program->crashed)
		sim_fail("call", "%s = %d: %s", name, rc, wherryErrorText());
	call_end(call, name, rc > 0 ? -rc : rc, limit);
}

/* ---- engines --------------------------------------------------------------------------------- */

static struct program *program_self(void)
{
	for (int i = program_count() - 1; i >= 0; i--)
		if (sim_node_self() == program_at(i)->node)
			return program_at(i);
	return NULL;
}

static bool publishes_wherry(const struct program *program)
{
	return sim_options.mooncake == BY_WHERRY ||
	       (sim_options.mooncake == BY_BOTH && program->place % 2);
}

/* Is this the variable of "name=value": the name in capitals, behind a prefix? */
static bool is_variable(const char *variable, const char *row)
{
	const char *name = variable + strlen("WHERRY_");

	while (*name && tolower((unsigned char)*name) == *row)
		name++, row++;
	return !*name && *row == '=';
}

const char *dropin_setting(const char *name)
{
	static struct program_settings settings;

	if (strncmp(name, "WHERRY_", strlen("WHERRY_")) != 0)
		return NULL;
	program_settings(&settings);
	for (int i = 0; settings.rows[i]; i++)
		if (is_variable(name, settings.rows[i]))
			return strchr(settings.rows[i], '=') + 1;
	return NULL;
}

static const char *variable(const char *name)
{
	const struct program *program = program_self();

	if (!program)
		return NULL;
	if (strcmp(name, "WHERRY_LISTEN") == 0)
		return publishes_wherry(program) ? NULL : "none";
	return dropin_setting(name);
}

static void register_target(struct program *program, int slot)
{
	static int generations;
	struct target *target = target_new(program, slot, ++generations);
	struct call call = call_begin(program);
	int rc = registerLocalMemory(program->dropin->engine, target->memory, target->size, "*", 1);

	check_call(&call, "registerLocalMemory", rc, true, program->timeout);
	if (rc)
		target_seal(program, target);
	else
		program->targets[slot] = target;
}

/* When this returns true, nobody touches its memory. */
static bool unregister_target(struct program *program, int slot)
{
	struct target *target = program->targets[slot];
	struct call call = call_begin(program);
	int rc;

	target_check(target);
	rc = unregisterLocalMemory(program->dropin->engine, target->memory);
	check_call(&call, "unregisterLocalMemory", rc, !rc || rc == -4, program->timeout);
	if (rc)
		return false;
	target_check(target);
	target_seal(program, target);
	program->targets[slot] = NULL;
	return true;
}

bool dropin_open(struct program *program)
{
	struct dropin *own = calloc(1, sizeof(*own));
	int host = place_host(program->place) + 1;
	char name[32];
	struct call call;

	sim_environment(variable);
	snprintf(name, sizeof(name), sim_options.ipv6 ? "fd00::%x" : "10.0.0.%d", host);
	call = call_begin(program);
	own->engine = createTransferEngine("P2PHANDSHAKE", name, NULL, 0, 1);
	sim_trace("createTransferEngine: %s", own->engine ? "" : wherryErrorText());
	call_end(&call, "createTransferEngine", own->engine ? 0 : -1, 3 * program->timeout);
	if (!own->engine) {
		free(own);
		return false;
	}
	getLocalIpAndPort(own->engine, own->name, sizeof(own->name));
	memset(own->segments, 0xff, sizeof(own->segments));
	program->dropin = own;
	for (int i = 0; i < PROGRAM_TARGETS; i++)
		register_target(program, i);
	return true;
}

/* ---- segments -------------------------------------------------------------------------------- */

static const char *name_of(int place)
{
	const struct program *there = program_at_place(place);

	return there ? there->dropin->name : NULL;
}

static void segment_open(struct program *program, int place)
{
	struct dropin *own = program->dropin;
	bool cached = sim_draw_work(2);
	char name[64];
	segment_id_t id;
	struct call call;

	if (!name_of(place))
		return;
	snprintf(name, sizeof(name), "%s", name_of(place));
	call = call_begin(program);
	id = cached ? openSegment(own->engine, name) : openSegmentNoCache(own->engine, name);
	sim_trace("open segment %s: %d %s", name, id, id < 0 ? wherryErrorText() : "");
	call_end(&call, "openSegment", id, connecting(program));
	if (id < 0)
		return;
	if (!id != (place == program->place))
		sim_fail("segments", "%s of place %d is segment %d", name, place, id);
	if (own->segments[place] >= 0 && strcmp(own->names[place], name) == 0 &&
	    own->segments[place] != id)
		sim_fail("segments", "%s was segment %d and is %d", name, own->segments[place], id);
	own->segments[place] = id;
	snprintf(own->names[place], sizeof(own->names[place]), "%s", name);
}

static void segment_close(struct program *program, int place)
{
	struct dropin *own = program->dropin;
	struct call call = call_begin(program);
	int rc;

	if (own->segments[place] <= 0)
		return;
	rc = closeSegment(own->engine, own->segments[place]);
	check_call(&call, "closeSegment", rc, !rc, connecting(program));
}

static void segments_ask(struct program *program)
{
	struct call call = call_begin(program);
	char text[2000];
	int rc;

	if (sim_draw_work(2)) {
		rc = syncSegmentCache(program->dropin->engine);
		call_end(&call, "syncSegmentCache", rc, place_count() * connecting(program));
	} else {
		rc = showLinks(program->dropin->engine, text, sizeof(text), (int)sim_draw_work(2));
		call_end(&call, "showLinks", rc, 0);
	}
}

/* ---- batches: making ------------------------------------------------------------------------- */

static bool has_block(const struct transfers *batch, const struct target *target, int block)
{
	for (int i = 0; i < batch->op_count; i++)
		if (batch->ops[i].target == target && batch->ops[i].block == block)
			return true;
	return false;
}

static void choose(const struct program *program, struct transfers *batch)
{
	const struct program *there = program_at_place(batch->place);
	size_t size = (size_t)sim_options.block;

	for (int i = 1 + (int)sim_draw_work(PROGRAM_OPS); i > 0; i--) {
		struct op *op = &batch->ops[batch->op_count];
		struct target *target = there->targets[sim_draw_work(PROGRAM_TARGETS)];
		int block = program->place * PROGRAM_BLOCKS + (int)sim_draw_work(PROGRAM_BLOCKS);

		if (!target || has_block(batch, target, block) || target->block[block].busy ||
		    target->block[block].tainted)
			continue;
		op->target = target;
		op->block = block;
		op->length = sim_draw_work(2) ? size : 1 + sim_draw_work(size);
		op->offset = sim_draw_work(size - op->length + 1);
		op->kind = sim_draw_work(3) ? WH_WRITE : WH_READ;
		op->stamp = sim_draw_work(UINT64_MAX);
		op->local = batch->size;
		batch->size += op->length;
		batch->op_count++;
	}
}

static bool local_open(struct program *program, struct transfers *batch)
{
	struct call call = call_begin(program);
	int rc;

	batch->mapped = (batch->size + 4095) / 4096 * 4096;
	batch->local = mmap(NULL, batch->mapped, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < batch->op_count; i++)
		if (batch->ops[i].kind == WH_WRITE)
			pattern_fill(batch->local + batch->ops[i].local, batch->ops[i].stamp,
				     batch->ops[i].length);
	rc = registerLocalMemory(program->dropin->engine, batch->local, batch->size, "*", 0);
	check_call(&call, "registerLocalMemory", rc, true, program->timeout);
	if (rc)
		munmap(batch->local, batch->mapped);
	return !rc;
}

static void mark_busy(struct transfers *batch, bool busy)
{
	for (int i = 0; i < batch->op_count; i++) {
		const struct op *op = &batch->ops[i];
		struct block *block = target_block(op);

		block->busy = busy;
		block->offset = op->kind == WH_WRITE ? op->offset : 0;
		block->length = op->kind == WH_WRITE ? op->length : 0;
	}
}

static struct message *message_new(const struct transfers *batch)
{
	struct message *message = &messages[message_count];

	if (!sim_options.notes || sim_draw_work(2) || message_count == MESSAGES)
		return NULL;
	message_count++;
	*message = (struct message){ .place = batch->place,
				     .node = program_at_place(batch->place)->node,
				     .op_count = batch->op_count };
	memcpy(message->ops, batch->ops, sizeof(message->ops));
	return message;
}

static int submit(struct program *program, struct transfers *batch)
{
	transfer_engine_t engine = program->dropin->engine;
	struct transfer_request requests[PROGRAM_OPS];
	char number[16], text[] = "a message";
	struct call call;
	int rc;

	for (int i = 0; i < batch->op_count; i++) {
		const struct op *op = &batch->ops[i];

		requests[i] = (struct transfer_request){
			.opcode = op->kind == WH_WRITE ? OPCODE_WRITE : OPCODE_READ,
			.source = batch->local + op->local,
			.target_id = program->dropin->segments[batch->place],
			.target_offset =
				(uint64_t)(uintptr_t)op->target->memory + target_offset(op),
			.length = op->length,
		};
	}
	snprintf(number, sizeof(number), "%d",
		 batch->message ? (int)(batch->message - messages) : 0);
	call = call_begin(program);
	rc = batch->message ?
		     submitTransferWithNotify(engine, batch->id, requests, (size_t)batch->op_count,
					      (notify_msg_t){ number, text }) :
		     submitTransfer(engine, batch->id, requests, (size_t)batch->op_count);
	/* 1 to 3: something is wrong with a request. */
	check_call(&call, "submitTransfer", rc, rc <= 0 || rc > 4, connecting(program));
	return rc;
}

static void transfers_free(struct program *program, struct transfers *batch)
{
	struct call call = call_begin(program);
	int rc = freeBatchID(program->dropin->engine, batch->id);

	check_call(&call, "freeBatchID", rc, !rc, 0);
	if (batch->after && memcmp(batch->after, batch->local, batch->size) != 0)
		sim_fail("bytes", "local memory of a batch has changed after its end");
	call = call_begin(program);
	rc = unregisterLocalMemory(program->dropin->engine, batch->local);
	check_call(&call, "unregisterLocalMemory", rc, !rc, program->timeout);
	/* Who touches it faults. */
	mprotect(batch->local, batch->mapped, PROT_NONE);
	free(batch->after);
	*batch = (struct transfers){ 0 };
}

static void transfers_new(struct program *program, struct transfers *batch, int place)
{
	struct dropin *own = program->dropin;
	int rc;

	if (own->segments[place] < 0 || !program_at_place(place))
		return;
	*batch = (struct transfers){ .place = place, .size = sim_draw_work(8) };
	choose(program, batch);
	if (!batch->op_count || !local_open(program, batch))
		return;
	/* It may have withdrawn them meanwhile: that must fail. */
	batch->id = allocateBatchID(own->engine, PROGRAM_OPS);
	if (batch->id == INVALID_BATCH || !program_at_place(place)) {
		unregisterLocalMemory(own->engine, batch->local);
		if (batch->id != INVALID_BATCH)
			freeBatchID(own->engine, batch->id);
		return;
	}
	batch->used = batch->running = true;
	batch->message = message_new(batch);
	batch->submitted = sim_time;
	mark_busy(batch, true);
	rc = submit(program, batch);
	program_counts.batches += !rc;
	if (!rc)
		return;
	batch->running = false;
	mark_busy(batch, false);
	if (batch->message)
		batch->message->ended = true;
	transfers_free(program, batch);
}

/* ---- batches: their end ---------------------------------------------------------------------- */

static void settle_op(struct program *program, struct transfers *batch, int index, bool completed)
{
	const struct op *op = &batch->ops[index];
	int status = completed && !program->crashed ? 0 : -1;
	struct past past = { op->stamp, op->offset, op->length, batch->submitted,
			     sim_time,  status,     0,          program->node };

	if (!status && op->target->dead && op->target->died < batch->submitted)
		sim_fail("dead", "a request completed with %s, which was gone before",
			 op->target->name);
	/* Mooncake's protocol has no cancel: bytes of a write that failed may come late. */
	model_settle(op, batch->local + op->local, status, status, &past);
}

static void count(bool completed)
{
	program_counts.succeeded += completed;
	program_counts.failed += !completed;
}

/* True: all of its requests have ended. */
static bool transfers_look(struct program *program, struct transfers *batch)
{
	struct transfer_status status[PROGRAM_OPS];
	bool all = true;

	for (int i = 0; i < batch->op_count; i++) {
		int rc = getTransferStatus(program->dropin->engine, batch->id, (size_t)i,
					   &status[i]);

		if (rc)
			sim_fail("call", "getTransferStatus = %d: %s", rc, wherryErrorText());
		if (status[i].status == STATUS_WAITING)
			return false;
		if (status[i].transferred_bytes !=
		    (status[i].status == STATUS_COMPLETED ? batch->ops[i].length : 0))
			sim_fail("status", "a request of status %d has moved %llu bytes",
				 status[i].status, (unsigned long long)status[i].transferred_bytes);
		sim_trace("request %d to place %d: %d %s", i, batch->place, status[i].status,
			  status[i].status == STATUS_COMPLETED ? "" : wherryErrorText());
		all &= status[i].status == STATUS_COMPLETED;
	}
	batch->running = false;
	for (int i = 0; i < batch->op_count; i++)
		settle_op(program, batch, i, status[i].status == STATUS_COMPLETED);
	count(all);
	if (batch->message) {
		batch->message->ended = true;
		batch->message->completed = all && !program->crashed;
	}
	batch->after = malloc(batch->size);
	memcpy(batch->after, batch->local, batch->size);
	return true;
}

static void transfers_wait(struct program *program, struct transfers *batch, int64_t timeout)
{
	struct call call = call_begin(program);
	int rc = wherryWaitBatch(program->dropin->engine, batch->id, timeout);

	check_call(&call, "wherryWaitBatch", rc, !rc || rc == 4, timeout);
	if (!transfers_look(program, batch) && !rc)
		sim_fail("status", "wherryWaitBatch() = 0, and a request is waiting");
}

/* ---- notifications --------------------------------------------------------------------------- */

static void message_received(const struct program *program, const notify_msg_t *got)
{
	int number = atoi(got->name);
	struct message *message = &messages[number];

	if (number < 0 || number >= message_count || strcmp(got->msg, "a message") != 0)
		sim_fail("notification", "nobody sent '%s': '%s'", got->name, got->msg);
	if (message->received++)
		sim_fail("notification", "notification %d was received twice", number);
	/* The protocol names addresses, and the next incarnation has the same ones. */
	if (message->place != program->place)
		sim_fail("notification", "notification %d came to place %d, it was for %d", number,
			 program->place, message->place);
	program_counts.notes++;
	/* Later batches may have changed the bytes once it has ended. */
	for (int i = 0; i < message->op_count && !message->ended; i++) {
		const struct op *op = &message->ops[i];

		if (op->kind == WH_WRITE && !op->target->dead && !target_block(op)->tainted &&
		    pattern_differs(op->target->memory + target_offset(op), op->stamp, op->length) <
			    op->length)
			sim_fail("notification", "notification %d came before its bytes", number);
	}
}

static void messages_take(struct program *program)
{
	int size = 0;
	notify_msg_t *got = getNotifsFromEngine(program->dropin->engine, &size);

	for (int i = 0; i < size; i++)
		message_received(program, &got[i]);
	freeNotifsMsgBuf(got, size);
}

static bool has_tainted(const struct target *target)
{
	for (int i = 0; i < place_count() * PROGRAM_BLOCKS; i++)
		if (target->block[i].tainted)
			return true;
	return false;
}

/* Nobody uses a block again whose bytes may still come: offer others in its stead, or who has to
 * reach this program finds none. */
static void targets_renew(struct program *program)
{
	for (int i = 0; i < PROGRAM_TARGETS; i++)
		if (!program->targets[i] ||
		    (has_tainted(program->targets[i]) && unregister_target(program, i)))
			register_target(program, i);
}

void dropin_serve(struct program *program)
{
	sim_sleep(20 * SIM_MS);
	messages_take(program);
	if (program_phase == PHASE_DRAIN)
		targets_renew(program);
}

void dropin_check_received(const struct program *program)
{
	for (int i = 0; i < message_count; i++)
		if (messages[i].completed && messages[i].node == program->node &&
		    !messages[i].received)
			sim_fail("notification",
				 "notification %d of a batch that completed was never received", i);
}

/* ---- one thing after the other --------------------------------------------------------------- */

static void step_batch(struct program *program)
{
	struct transfers *batch = &program->dropin->batches[sim_draw_work(BATCHES)];

	if (!batch->used)
		transfers_new(program, batch, (int)sim_draw_work((uint64_t)place_count()));
	else if (!batch->running)
		transfers_free(program, batch);
	else if (sim_draw_work(2))
		transfers_look(program, batch);
	else
		transfers_wait(program, batch, (int64_t)sim_draw_work(20 * SIM_MS));
}

void dropin_work(struct program *program)
{
	uint64_t what = sim_draw_work(20);
	int place = (int)sim_draw_work((uint64_t)place_count());
	int slot = (int)sim_draw_work(PROGRAM_TARGETS);

	if (what <= 2)
		segment_open(program, place);
	else if (what == 3 && !sim_draw_work(4))
		segment_close(program, place);
	else if (what == 4)
		segments_ask(program);
	else if (what == 5)
		messages_take(program);
	else if (what == 6 && !program->targets[slot])
		register_target(program, slot);
	else if (what == 6 && !sim_draw_work(4))
		unregister_target(program, slot);
	else if (what == 7)
		model_check_all();
	else if (what == 8)
		sim_sleep((int64_t)sim_draw_work(20 * SIM_MS));
	else
		step_batch(program);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void hang_if_late(const struct program *program, const char *what)
{
	if (sim_time - program_healed_at > HEALED_MOST)
		sim_fail("hang", "%lld s after all was healed node %d %s: %s",
			 HEALED_MOST / SIM_SEC, program->node, what, wherryErrorText());
}

/* Everything that runs ends. */
static void batches_end(struct program *program)
{
	for (int i = 0; i < BATCHES; i++) {
		struct transfers *batch = &program->dropin->batches[i];

		while (batch->used && batch->running && !program->crashed) {
			hang_if_late(program, "has a batch that does not end");
			messages_take(program);
			transfers_wait(program, batch, SIM_SEC);
		}
		if (batch->used && !batch->running)
			transfers_free(program, batch);
	}
}

/* A segment that is opened anew takes a batch. */
static void check_place(struct program *program, int place)
{
	struct transfers *batch = &program->dropin->batches[0];
	uint64_t before;

	do {
		hang_if_late(program, "reaches somebody no more");
		segment_close(program, place);
		segment_open(program, place);
		for (int i = 0; i < PROGRAM_TARGETS; i++)
			if (!program->targets[i] || sim_draw_work(2))
				if (!program->targets[i] || unregister_target(program, i))
					register_target(program, i);
		before = program_counts.succeeded;
		transfers_new(program, batch, place);
		batches_end(program);
		dropin_serve(program);
	} while (program_counts.succeeded == before && !program->crashed);
}

void dropin_drain(struct program *program)
{
	batches_end(program);
	for (int place = 0; place < place_count() && !program->crashed; place++)
		/* An engine that was opened without memory may have no way to itself. */
		if (place != program->place ||
		    (program_may_use("self", place, place) && !sim_counts.failed_allocations))
			check_place(program, place);
	for (int64_t end = sim_time + LISTEN_ON; sim_time < end;)
		dropin_serve(program);
}

void dropin_close(struct program *program)
{
	struct dropin *own = program->dropin;
	struct call call = call_begin(program);

	messages_take(program);
	destroyTransferEngine(own->engine);
	call_end(&call, "destroyTransferEngine", 0, 3 * program->timeout + DESTROY_MOST);
	for (int i = 0; i < BATCHES; i++) {
		struct transfers *batch = &own->batches[i];

		if (batch->used && batch->running) {
			/* Cancelled; nobody knows how far it came. */
			for (int j = 0; j < batch->op_count; j++)
				settle_op(program, batch, j, false);
			if (batch->message)
				batch->message->ended = true;
		}
		if (batch->used)
			mprotect(batch->local, batch->mapped, PROT_NONE);
		free(batch->after);
	}
	for (int i = 0; i < PROGRAM_TARGETS; i++) {
		if (program->targets[i])
			target_seal(program, program->targets[i]);
		program->targets[i] = NULL;
	}
	free(own);
	program->dropin = NULL;
}
