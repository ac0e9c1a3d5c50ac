/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: filled at random, submitted again and again, waited for, cancelled. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

#define WAKE_MOST (100 * SIM_MS) /* until a thread runs that was woken */

int batch_number(const struct batch *batch)
{
	return (int)(batch - batch->program->batches);
}

static struct turn *turn_at(struct batch *batch, int submission)
{
	return &batch->turns[submission % PROGRAM_TURNS];
}

/* May bytes of a batch still arrive, although it has ended? Cancelling it says so (rule 7 of
 * transfer.h). */
static bool may_come_late(const struct batch *batch, int status)
{
	struct call call = call_begin(batch->program);
	/* What a GPU has been told to do may succeed even so. */
	int rc = batch->cancel_late && status ? -ETIMEDOUT : wh_batch_cancel(batch->batch);

	call_end(&call, "wh_batch_cancel of an ended batch", rc, 0);
	if (rc && (rc != -ETIMEDOUT || !status))
		sim_fail("cancel", "wh_batch_cancel of a batch that ended with %d: %d, %s", status,
			 rc, wh_error_text());
	return rc;
}

/* The programs ask for nothing that is wrong. */
static void check_error(const char *call, int error)
{
	if (error == -ERANGE || error == -EACCES || error == -EINVAL)
		sim_fail("status", "%s: %d, %s", call, error, wh_error_text());
}

static void count(struct program *program, int status)
{
	if (!program->crashed)
		check_error("a batch", status);
	if (status == -ECANCELED) {
		program_counts.cancelled++;
		program->cancelled++;
	} else if (status) {
		program_counts.failed++;
		program->failed++;
	} else {
		program_counts.succeeded++;
		program->succeeded++;
	}
}

static bool has_bytes(const struct batch *batch)
{
	for (int i = 0; i < batch->op_count; i++)
		if (batch->ops[i].length)
			return true;
	return false;
}

static bool has_file(const struct batch *batch)
{
	for (int i = 0; i < batch->op_count; i++)
		if (batch->ops[i].target->file)
			return true;
	return false;
}

/* Does a GPU of this host move some of its bytes? */
static bool has_gpu(const struct batch *batch)
{
	const struct program *program = batch->program;

	for (int i = 0; i < batch->op_count; i++)
		if (batch->ops[i].target->on_gpu &&
		    place_host(batch->peer->place) == place_host(program->place))
			return true;
	return batch->on_gpu;
}

static void count_route(const struct wh_route *route)
{
	if (strcmp(route->transport, "self") == 0)
		program_counts.by_self += route->bytes;
	else if (strcmp(route->transport, "cuda") == 0)
		program_counts.by_cuda += route->bytes;
	else if (strcmp(route->transport, "shm") == 0)
		program_counts.by_shm += route->bytes;
	else if (strcmp(route->transport, "rdma") == 0)
		program_counts.by_rdma += route->bytes;
	else
		program_counts.by_tcp += route->bytes;
}

/* Within a host, bytes that take the network: it says why no better way was taken. */
static void check_explanation(const struct batch *batch, const struct wh_route *route)
{
	int from = batch->program->place, to = batch->peer->place;
	const char *better = program_may_use("self", from, to) ? "self" :
			     program_may_use("shm", from, to)  ? "shm" :
								 NULL;
	char text[4000] = "";

	/* Files of a peer go by tcp, through memory that shm lends it. */
	if (!better || has_file(batch) || !route->bytes || strcmp(route->transport, "tcp") != 0)
		return;
	if (wh_batch_explain(batch->batch, text, sizeof(text)) < 0)
		return; /* no memory */
	if (!strstr(text, better) && !(has_gpu(batch) && strstr(text, "cuda")))
		sim_fail("explanation", "bytes went by tcp, and nothing says why not by %s: %s",
			 better, text);
}

/* What a batch that succeeded says of its way: all bytes by transports that lead there, and no more
 * by NICs and GPUs than these have moved. */
static void check_routes(const struct batch *batch)
{
	struct wh_route routes[8];
	size_t number = 8;
	uint64_t bytes = 0, expected = 0;
	int rc = wh_batch_routes(batch->batch, routes, &number);

	if (rc)
		sim_fail("explanation", "wh_batch_routes = %d: %s", rc, wh_error_text());
	for (int i = 0; i < batch->op_count; i++)
		expected += batch->ops[i].length;
	for (size_t i = 0; i < number; i++) {
		if (routes[i].bytes && !program_may_use(routes[i].transport, batch->program->place,
							batch->peer->place))
			sim_fail("explanation", "%llu bytes went by %s to place %d",
				 (unsigned long long)routes[i].bytes, routes[i].transport,
				 batch->peer->place);
		bytes += routes[i].bytes;
		count_route(&routes[i]);
		check_explanation(batch, &routes[i]);
	}
	if (program_counts.by_rdma > sim_counts.nic_bytes)
		sim_fail("explanation", "batches say that NICs moved %llu bytes, these %llu",
			 (unsigned long long)program_counts.by_rdma,
			 (unsigned long long)sim_counts.nic_bytes);
	if (program_counts.by_cuda > sim_counts.gpu_bytes)
		sim_fail("explanation", "batches say that GPUs moved %llu bytes, these %llu",
			 (unsigned long long)program_counts.by_cuda,
			 (unsigned long long)sim_counts.gpu_bytes);
	if (bytes != expected)
		sim_fail("explanation", "the routes have %llu bytes, the batch has %llu",
			 (unsigned long long)bytes, (unsigned long long)expected);
}

static void settle_op(struct batch *batch, int index, int status, bool late)
{
	const struct op *op = &batch->ops[index];
	struct past past = { op->stamp, op->offset, op->length,          batch->submitted,
			     sim_time,  status,     batch_number(batch), batch->program->node };
	int each = status, rc;

	if (!batch->blocks) {
		rc = wh_batch_transfer_status(batch->batch, (size_t)index, &each);
		if (rc)
			sim_fail("call", "wh_batch_transfer_status = %d", rc);
		if (!status && each)
			sim_fail("status", "transfer %d of a batch that succeeded: %d", index,
				 each);
	}
	if (!status && op->length && op->target->dead && op->target->died < batch->submitted)
		sim_fail("dead", "a batch succeeded with %s, which was gone before",
			 op->target->name);
	if (batch->program->crashed && !each)
		each = -ECONNRESET;
	model_settle(op, batch->local + op->local, each, late, &past);
}

void batch_settle(struct batch *batch, int status, const char *how)
{
	bool late;

	sim_trace("batch %d ends: %d %s (by %s) after %.6f s", batch_number(batch), status,
		  status ? wh_batch_error_text(batch->batch) : "", how,
		  (double)(sim_time - batch->submitted) / 1e9);
	if (!batch->running)
		sim_fail("status", "a batch ended that did not run (by %s)", how);
	if (wh_batch_status(batch->batch) != status)
		sim_fail("status", "%s says %d, wh_batch_status() %d", how, status,
			 wh_batch_status(batch->batch));
	*turn_at(batch, batch->submissions - 1) =
		(struct turn){ batch->submitted, sim_time, status };
	/* A crashed program believes what it likes; nobody sees what it does. */
	if (batch->program->crashed && !status)
		status = -ECONNRESET;
	batch->running = false;
	batch->ended = sim_time;
	count(batch->program, status);
	late = batch->program->crashed || may_come_late(batch, status);
	for (int i = 0; i < batch->op_count; i++)
		settle_op(batch, i, status, late);
	if (!status && batch->op_count)
		check_routes(batch);
	free(batch->after);
	batch->after = malloc(batch->local_size);
	memcpy(batch->after, batch->local, batch->local_size);
	if (batch->note) {
		batch->note->status = status;
		batch->note->completed = sim_time;
		batch->note = NULL;
	}
}

/* Callbacks come in the order of completion: those of submissions that had ended before this one
 * began have come before. */
static void check_order(struct batch *batch)
{
	int64_t submitted = turn_at(batch, batch->callbacks)->submitted;

	for (int i = 0; i < PROGRAM_BATCHES; i++) {
		struct batch *other = &batch->program->batches[i];
		const struct turn *next = turn_at(other, other->callbacks);

		if (other->batch && other->called && other->callbacks < other->submissions &&
		    next->ended && next->ended < submitted)
			sim_fail("callback", "the callback of batch %d came before that of %d",
				 batch_number(batch), i);
	}
}

static void callback(struct wh_batch *handle, int status, void *arg)
{
	struct batch *batch = arg;
	const struct turn *turn = turn_at(batch, batch->callbacks);

	if (sim_options.threads && !sim_draw_work(8)) /* batches complete again meanwhile */
		sim_sleep((int64_t)sim_draw_work(200 * SIM_MS));
	if (handle != batch->batch)
		sim_fail("callback", "a callback for another batch");
	check_order(batch);
	if (turn->ended && turn->status != status)
		sim_fail("callback", "a callback says %d of a submission that ended with %d",
			 status, turn->status);
	if (++batch->callbacks > batch->submissions)
		sim_fail("callback", "%d callbacks for %d submissions", batch->callbacks,
			 batch->submissions);
}

void batch_check(const struct batch *batch)
{
	if (batch->batch && !batch->running && batch->after &&
	    memcmp(batch->after, batch->local, batch->local_size) != 0)
		sim_fail("bytes", "local memory of a batch has changed after its end");
}

/* ---- submitting ------------------------------------------------------------------------------ */

static void fill_local(struct batch *batch)
{
	free(batch->after);
	batch->after = NULL;
	for (int i = 0; i < batch->op_count; i++) {
		struct op *op = &batch->ops[i];

		op->stamp = sim_draw_work(UINT64_MAX);
		if (op->kind == WH_WRITE)
			pattern_fill(batch->local + op->local, op->stamp, op->length);
		else
			memset(batch->local + op->local, 0xee, op->length);
	}
}

/* Wait until no other thread uses it. */
static void unpin(const struct batch *batch)
{
	while (batch->pins)
		sim_sleep(100000);
}

/* Sometimes also to what is gone: that must fail. */
static bool may_submit(const struct batch *batch)
{
	bool dead = !sim_draw_work(4);

	if (batch->called && batch->submissions - batch->callbacks == PROGRAM_TURNS)
		return false;
	for (int i = 0; i < batch->op_count; i++) {
		const struct block *block = target_block(&batch->ops[i]);

		if ((batch->ops[i].target->dead && !dead) || block->busy || block->tainted)
			return false;
	}
	return true;
}

static void mark_busy(struct batch *batch, bool busy)
{
	for (int i = 0; i < batch->op_count; i++) {
		const struct op *op = &batch->ops[i];
		struct block *block = target_block(op);

		block->busy = busy;
		block->offset = op->kind == WH_WRITE ? op->offset : 0;
		block->length = op->kind == WH_WRITE ? op->length : 0;
		if (busy)
			sim_trace("  op %d: %s %s block %d, %zu at %zu", i,
				  op->kind == WH_WRITE ? "write" : "read", op->target->name,
				  op->block, op->length, op->offset);
	}
}

/* What moves no bytes and notifies nobody has succeeded at once. */
static void check_empty(const struct batch *batch)
{
	int status = wh_batch_status(batch->batch);

	if (status && !batch->note && !has_bytes(batch) && !batch->program->crashed)
		sim_fail("status", "a batch without bytes: %d after it was submitted", status);
}

void batch_submit(struct batch *batch)
{
	const struct program *there;
	struct call call;
	int error;

	unpin(batch);
	if (!may_submit(batch))
		return;
	fill_local(batch);
	/* A batch that had a notification keeps it: give it another one. */
	if (sim_options.notes && (sim_draw_work(2) || !batch->op_count || batch->noted))
		note_attach(batch);
	if (!batch->note && (batch->noted || (!batch->op_count && !sim_options.empty)))
		return;
	mark_busy(batch, true);
	batch->cancel_late = false;
	batch->submitted = sim_time;
	*turn_at(batch, batch->submissions++) = (struct turn){ .submitted = sim_time };
	batch->running = true;
	there = peer_program(batch->peer);
	call = call_begin(batch->program);
	if (batch->note) {
		batch->note->submitted = sim_time;
		batch->note->to = there ? there->node : -1;
	}
	error = wh_batch_submit(batch->batch);
	/* A plan measures the streams of GPUs first. */
	call_end(&call, "wh_batch_submit", error, sim_options.gpus ? PROGRAM_GPU_PATIENCE : 0);
	sim_trace("submit %d: %d %s, %d ops%s", batch_number(batch), error,
		  error ? wh_error_text() : "", batch->op_count, batch->note ? ", note" : "");
	if (!error) {
		program_counts.batches++;
		check_empty(batch);
		return;
	}
	if (!batch->program->crashed)
		check_error("wh_batch_submit", error);
	batch->submissions--;
	batch->running = false;
	if (batch->note) {
		batch->note->status = error;
		batch->note = NULL;
	}
	mark_busy(batch, false);
}

/* ---- making ---------------------------------------------------------------------------------- */

static bool has_block(const struct batch *batch, const struct target *target, int block)
{
	for (int i = 0; i < batch->op_count; i++)
		if (batch->ops[i].target == target && batch->ops[i].block == block)
			return true;
	return false;
}

static void choose_ops(struct batch *batch, const struct program *there)
{
	size_t size = (size_t)sim_options.block;

	for (int i = (int)sim_draw_work(PROGRAM_OPS + 1); i > 0; i--) {
		struct op *op = &batch->ops[batch->op_count];
		struct target *target = there->targets[sim_draw_work(PROGRAM_TARGETS)];
		int block =
			batch->program->place * PROGRAM_BLOCKS + (int)sim_draw_work(PROGRAM_BLOCKS);

		if (!target || target->dead || has_block(batch, target, block))
			continue;
		op->target = target;
		op->block = block;
		op->length = sim_options.empty && !sim_draw_work(3) ? 0 :
			     sim_draw_work(2)                       ? size :
								      1 + sim_draw_work(size);
		op->offset = sim_draw_work(size - op->length + 1);
		op->kind = sim_draw_work(3) ? WH_WRITE : WH_READ;
		op->local = batch->local_size;
		batch->local_size += op->length;
		batch->op_count++;
	}
}

/* One op as eight blocks in another order; without bytes, as eight of none or as none. */
static int add_blocks(struct batch *batch)
{
	struct op *op = &batch->ops[0];
	uint64_t piece = op->length / 8, offsets[8];
	bool none = !op->length && sim_draw_work(2);
	struct wh_base base = { .local = batch->region,
				.local_offset = op->local,
				.remote = op->target->remote,
				.remote_offset = target_offset(op) };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = op->kind,
				       .block_length = none ? 64 : piece,
				       .count = none ? 0 : 8,
				       .bases = &base,
				       .base_count = 1,
				       .local_offsets = offsets,
				       .remote_offsets = offsets };
	struct wh_blocks *list;
	int error;

	op->length = piece * 8;
	for (uint64_t i = 0; i < 8; i++)
		offsets[i] = (i * 3 + 1) % 8 * piece;
	error = wh_blocks_new(batch->peer->peer, &desc, &list);
	if (error)
		return error;
	error = wh_batch_add_blocks(batch->batch, list);
	wh_blocks_free(list);
	batch->blocks = true;
	return error;
}

static int add_addresses(struct batch *batch)
{
	struct wh_address_transfer transfers[PROGRAM_OPS];

	for (int i = 0; i < batch->op_count; i++) {
		const struct op *op = &batch->ops[i];

		transfers[i] = (struct wh_address_transfer){
			.local = (void *)(uintptr_t)(batch->address + op->local),
			.remote = op->target->address + target_offset(op),
			.length = op->length,
			.op = op->kind,
		};
	}
	return wh_batch_add_address(batch->batch, transfers, (size_t)batch->op_count);
}

static int add_transfers(struct batch *batch)
{
	struct wh_transfer transfers[PROGRAM_OPS];

	for (int i = 0; i < batch->op_count; i++) {
		const struct op *op = &batch->ops[i];
		bool named = op->length || sim_draw_work(2); /* nobody looks at the regions */

		transfers[i] = (struct wh_transfer){
			.local = named ? batch->region : NULL,
			.local_offset = op->local,
			.remote = named ? op->target->remote : 0,
			.remote_offset = target_offset(op),
			.length = op->length,
			.op = op->kind,
		};
	}
	return wh_batch_add(batch->batch, transfers, (size_t)batch->op_count);
}

static int add(struct batch *batch)
{
	uint64_t form = sim_draw_work(4);

	if (!batch->op_count)
		return 0;
	if (form == 0 && sim_options.lists && batch->op_count == 1 &&
	    (batch->ops[0].length >= 16 || !batch->ops[0].length))
		return add_blocks(batch);
	if (form == 1 && sim_options.address && !has_file(batch))
		return add_addresses(batch);
	return add_transfers(batch);
}

static void free_local(const struct batch *batch)
{
	if (sim_gpu_pinned(batch->program->node, batch->local, batch->local_size))
		sim_fail("gpu", "local memory of a batch is still locked for GPUs");
	if (batch->on_gpu)
		sim_gpu_free(batch->program->node, batch->address);
	else
		free(batch->local);
}

/* Its handle and its local memory. */
static int make(struct batch *batch)
{
	struct wh_batch_options options = { .size = sizeof(options) };
	struct program *program = batch->program;
	int error;

	if (sim_options.gpus && (int)sim_draw_work(100) < sim_options.gpu_locals)
		batch->local = program_gpu_memory(program, batch->local_size, &batch->address);
	batch->on_gpu = batch->local;
	if (!batch->on_gpu) {
		batch->local = calloc(1, batch->local_size);
		batch->address = (uintptr_t)batch->local;
	}
	error = wh_region_register(program->engine, (void *)(uintptr_t)batch->address,
				   batch->local_size, NULL, &batch->region);
	if (error)
		goto err_free;
	batch->queued = program->queue && sim_draw_work(2);
	batch->called = sim_options.callback && sim_draw_work(2);
	options.queue = batch->queued ? program->queue : NULL;
	options.user = (uint64_t)batch_number(batch);
	options.callback = batch->called ? callback : NULL;
	options.callback_arg = batch;
	options.priority = sim_draw_work(3) ? WH_PRIORITY_BULK : WH_PRIORITY_LATENCY;
	error = wh_batch_new(batch->peer->peer, &options, &batch->batch);
	if (error)
		goto err_unregister;
	batch->peer->batches++;
	return 0;

err_unregister:
	wh_region_unregister(batch->region);
err_free:
	free_local(batch);
	return error;
}

void batch_new(struct program *program, struct batch *batch, struct peer *peer)
{
	const struct program *there = peer_program(peer);
	int error;

	if (!there)
		return;
	memset(batch, 0, sizeof(*batch));
	batch->program = program;
	batch->peer = peer;
	choose_ops(batch, there);
	if (!batch->op_count && !sim_options.notes && !sim_options.empty)
		return;
	if (!batch->local_size)
		batch->local_size = 8;
	if (make(batch)) {
		memset(batch, 0, sizeof(*batch));
		return;
	}
	error = add(batch);
	if (error) {
		sim_trace("add: %d %s", error, wh_error_text());
		check_error("wh_batch_add", error);
		batch_free(batch);
		return;
	}
	batch_submit(batch);
}

/* ---- ending ---------------------------------------------------------------------------------- */

int batch_wait(struct batch *batch, int64_t timeout)
{
	int rc;

	batch->waiters++;
	rc = wh_batch_wait_for(batch->batch, timeout);
	batch->waiters--;
	return rc;
}

void batch_check_waiters(struct batch *batch)
{
	/* Without threads a waiter may be giving another one's turn. */
	if (!batch->waiters || !sim_options.threads || sim_node_is_stalled(batch->program->node) ||
	    wh_batch_status(batch->batch) == -EINPROGRESS)
		batch->overdue = 0;
	else if (!batch->overdue)
		batch->overdue = sim_time;
	else if (sim_time - batch->overdue > WAKE_MOST)
		sim_fail("wake", "batch %d of node %d has ended, and who waits for it sleeps",
			 batch_number(batch), batch->program->node);
}

void batch_test(struct batch *batch)
{
	int64_t most = sim_draw_work(8) ? 20 * SIM_MS : 2 * SIM_SEC;
	int64_t timeout = sim_draw_work(2) ? 0 : (int64_t)sim_draw_work((uint64_t)most);
	struct call call = call_begin(batch->program);
	int rc;

	if (!batch->running || batch->queued)
		return;
	rc = timeout ? batch_wait(batch, timeout) : wh_batch_test(batch->batch);
	call_end(&call, timeout ? "wh_batch_wait_for" : "wh_batch_test", rc, timeout);
	if (rc == -EAGAIN)
		return;
	if (rc)
		sim_fail("call", "wh_batch_test = %d: %s", rc, wh_error_text());
	batch_settle(batch, wh_batch_status(batch->batch), "test");
}

void batch_cancel(struct batch *batch)
{
	/* What a disk or a GPU of this host has been told to do is waited for (file.h). */
	bool own = batch->peer->place == batch->program->place;
	bool waits = (own && has_file(batch)) || has_gpu(batch);
	struct call call = call_begin(batch->program);
	int rc;

	if (!batch->running)
		return;
	rc = wh_batch_cancel(batch->batch);
	sim_trace("cancel %d: %d %s", batch_number(batch), rc, rc ? wh_error_text() : "");
	/* It may be the planner's. */
	call_end(&call, "wh_batch_cancel", rc,
		 batch->program->timeout * (waits ? 4 : 1) + program_probing());
	if (rc == -ETIMEDOUT) {
		program_counts.cancelled_late++;
		batch->cancel_late = !own;
		if (waits && wh_batch_wait_for(batch->batch, PROGRAM_DISK))
			sim_fail("hang",
				 "a cancelled batch waits for a disk or a GPU that answers");
	} else if (rc) {
		sim_fail("call", "wh_batch_cancel = %d: %s", rc, wh_error_text());
	}
	if (batch->queued) {
		for (int i = 0; i < 100 && batch->running; i++)
			queue_take(batch->program, 10 * SIM_MS);
		if (batch->running)
			sim_fail("cancel", "a cancelled batch does not come out of its queue");
		return;
	}
	rc = wh_batch_test(batch->batch);
	if (rc)
		sim_fail("cancel", "a cancelled batch still runs: %d", rc);
	batch_settle(batch, wh_batch_status(batch->batch), "cancel");
}

void batch_free(struct batch *batch)
{
	int rc;

	unpin(batch);
	batch_check(batch);
	rc = wh_batch_free(batch->batch);
	if (rc)
		sim_fail("call", "wh_batch_free = %d: %s", rc, wh_error_text());
	if (batch->called && batch->callbacks != batch->submissions)
		sim_fail("callback", "%d callbacks for %d submissions", batch->callbacks,
			 batch->submissions);
	rc = wh_region_unregister(batch->region);
	if (rc)
		sim_fail("call", "wh_region_unregister of local memory = %d: %s", rc,
			 wh_error_text());
	free_local(batch);
	free(batch->after);
	batch->peer->batches--;
	memset(batch, 0, sizeof(*batch));
}
