/* SPDX-License-Identifier: Apache-2.0 */
/* A worker process, with some of the engines: it opens them, connects them and moves bytes as the
 * watching process orders. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "many.h"

#define PAUSE (2 * MANY_MS) /* sleep while there is nothing to do */
#define RETRY (100 * MANY_MS) /* after a peer could not be reached */
#define OPEN_TIMEOUT (20 * MANY_SECOND)
#define OPEN_AGAIN_TIMEOUT MANY_SECOND

/* One of an engine's peers, and the transfers with it. */
struct link {
	struct many_link *shared;
	struct wh_peer *peer; /* NULL: not connected */
	struct wh_batch *batch[2]; /* the write, the read */
	struct many_ledger *ledger; /* one for each pair of both sides' lives */
	uint32_t target_life, moved; /* transfers that have ended; an odd one is a read */
	uint64_t epoch; /* the target's */
	bool running;
	int64_t since, next; /* when it was submitted; when there is something to do again */
};

struct node {
	uint32_t number;
	struct wh_engine *engine;
	struct wh_region *region, *local;
	unsigned char *buffers; /* of each link: the bytes to write, and the bytes read */
	struct link *links;
	struct many_life *life;
};

struct worker {
	struct many *many;
	const struct many_worker *self;
	struct node *nodes;
	struct wh_peer **several;
	uint32_t several_count;
	int64_t pace; /* ns between two transfers of a link */
};

static void log_line(void *arg, const struct wh_log_record *record)
{
	const struct worker *worker = arg;

	fprintf(stderr, "worker %u: %s\n", worker->self->number, record->text);
}

/* Write the error text of the call to Wherry that just failed. */
static int answer_failed(struct many_answer *answer, int error, const char *what, uint32_t engine)
{
	snprintf(answer->text, sizeof(answer->text), "%s of n%u: %.200s", what, engine,
		 wh_error_text());
	answer->error = error;
	return error;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static int open_node(struct worker *worker, struct node *node, uint32_t number,
		     struct many_answer *answer)
{
	struct many *many = worker->many;
	const struct many_options *options = &many->options;
	uint32_t life = worker->self->life;
	size_t local = 2 * (size_t)options->bytes * options->degree;
	struct wh_region_options box = { .size = sizeof(box),
					 .name = "box",
					 .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
	char name[16];
	struct wh_engine_options engine = {
		.size = sizeof(engine),
		.name = name,
		.listen = "127.0.0.1:0",
		.config = options->config,
		.registry = options->registry,
		.log = options->verbose ? log_line : NULL,
		.log_arg = worker,
	};
	int64_t begun = many_now();
	int error;

	assert(local > 0);
	node->number = number;
	node->life = many_life(many, number, life);
	snprintf(name, sizeof(name), "n%u", number);
	/* Retry as a service manager would: on a busy machine the registry may answer late. */
	while ((error = wh_engine_open(&engine, &node->engine)) == -ETIMEDOUT &&
	       many_now() - begun < MANY_PATIENCE)
		;
	if (error)
		return answer_failed(answer, error, "opening", number);
	atomic_store(&node->life->open_us, (uint64_t)(many_now() - begun) / 1000);
	many_fill(many_badge(many, number, life), options->bytes, wh_engine_epoch(node->engine));
	atomic_store(&node->life->epoch, wh_engine_epoch(node->engine));
	node->buffers = calloc(1, local);
	node->links = calloc(options->degree, sizeof(*node->links));
	if (!node->buffers || !node->links) {
		snprintf(answer->text, sizeof(answer->text), "no memory for n%u", number);
		return answer->error = -ENOMEM;
	}
	error = wh_region_register(node->engine, node->buffers, local, NULL, &node->local);
	if (!error)
		error = wh_region_register(node->engine, many_badge(many, number, life),
					   many_region(options), &box, &node->region);
	for (uint32_t k = 0; k < options->degree; k++)
		node->links[k].shared = many_link(many, number, k);
	return error ? answer_failed(answer, error, "registering memory", number) : 0;
}

static void open_nodes(struct worker *worker, struct many_answer *answer)
{
	for (uint32_t i = 0; i < worker->self->count; i++)
		if (open_node(worker, &worker->nodes[i], worker->self->first + i, answer))
			return;
}

/* Close a peer none of whose batches is in flight. */
static int link_disconnect(struct link *link)
{
	int error = 0;

	if (!link->peer)
		return 0;
	for (int i = 0; i < 2 && !error; i++)
		error = wh_batch_free(link->batch[i]);
	if (!error)
		error = wh_peer_close(link->peer);
	link->peer = NULL;
	link->batch[0] = link->batch[1] = NULL;
	return error;
}

static int close_node(const struct worker *worker, struct node *node)
{
	int error = 0;

	for (uint32_t k = 0; k < worker->many->options.degree && !error; k++)
		error = link_disconnect(&node->links[k]);
	if (!error)
		error = wh_region_unregister(node->region);
	if (!error)
		error = wh_region_unregister(node->local);
	if (!error)
		error = wh_engine_close(node->engine);
	free(node->links);
	free(node->buffers);
	return error;
}

static void close_nodes(struct worker *worker, struct many_answer *answer)
{
	for (uint32_t i = 0; i < worker->self->count; i++) {
		int error = close_node(worker, &worker->nodes[i]);

		if (error) {
			answer_failed(answer, error, "closing", worker->nodes[i].number);
			return;
		}
	}
}

/* ---- links ----------------------------------------------------------------------------------- */

/* The life in which the engine has this epoch; MANY_LIVES: it has not recorded the epoch yet. */
static uint32_t life_of(struct many *many, uint32_t engine, uint64_t epoch)
{
	uint32_t life = 0;

	while (life < MANY_LIVES && atomic_load(&many_life(many, engine, life)->epoch) != epoch)
		life++;
	return life;
}

static int make_batches(const struct worker *worker, struct node *node, uint32_t k, uint64_t region)
{
	struct link *link = &node->links[k];
	const uint32_t bytes = worker->many->options.bytes;
	int error = 0;

	for (uint32_t i = 0; i < 2 && !error; i++) {
		struct wh_transfer transfer = {
			.op = i ? WH_READ : WH_WRITE,
			.local = node->local,
			.local_offset = (uint64_t)bytes * (2 * k + i),
			.remote = region,
			.remote_offset = i ? 0 : many_slot(worker->many, k, worker->self->life),
			.length = bytes,
		};

		error = wh_batch_new(link->peer, NULL, &link->batch[i]);
		if (!error)
			error = wh_batch_add(link->batch[i], &transfer, 1);
	}
	return error;
}

static int connect_link(struct worker *worker, struct node *node, uint32_t k, int64_t timeout)
{
	struct wh_peer_options options = { .size = sizeof(options), .timeout = timeout };
	struct wh_peer_info info = { .size = sizeof(info) };
	struct link *link = &node->links[k];
	uint32_t target = link->shared->target;
	int64_t begun = many_now();
	struct wh_remote box;
	char name[32];
	int error;

	snprintf(name, sizeof(name), "wherry://n%u", target);
	error = wh_peer_open(node->engine, name, &options, &link->peer);
	if (error)
		return error;
	if (!atomic_load(&link->shared->connect_us))
		atomic_store(&link->shared->connect_us, (uint32_t)((many_now() - begun) / 1000));
	error = wh_peer_info(link->peer, &info);
	link->epoch = info.epoch;
	link->target_life = error ? MANY_LIVES : life_of(worker->many, target, info.epoch);
	if (!error)
		error = link->target_life == MANY_LIVES ?
				-EAGAIN :
				wh_peer_find(link->peer, "box", timeout, &box);
	if (!error)
		error = make_batches(worker, node, k, box.id);
	if (error) {
		link_disconnect(link);
		return error;
	}
	link->ledger = &link->shared->ledger[worker->self->life][link->target_life];
	link->moved = 0;
	return 0;
}

static void connect_all(struct worker *worker, struct many_answer *answer)
{
	for (uint32_t i = 0; i < worker->self->count; i++)
		for (uint32_t k = 0; k < worker->many->options.degree; k++) {
			int error = connect_link(worker, &worker->nodes[i], k, OPEN_TIMEOUT);

			if (error) {
				answer_failed(answer, error, "connecting", worker->nodes[i].number);
				return;
			}
		}
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* Submit the write, or the read after it. 0, or why it could not be submitted. */
static int link_submit(struct worker *worker, struct node *node, uint32_t k)
{
	struct many *many = worker->many;
	struct link *link = &node->links[k];
	bool reads = link->moved % 2;
	unsigned char *local = node->buffers + (size_t)many->options.bytes * (2 * k + reads);
	uint32_t number = atomic_load(&link->ledger->submitted) + 1;
	int error;

	many_fill(local, many->options.bytes, reads ? 0 : many_word(node->number, k, number));
	/* The ledger first, because this process may be killed at any moment. */
	if (!reads)
		atomic_store(&link->ledger->submitted, number);
	atomic_fetch_add(&node->life->submitted, 1);
	error = wh_batch_submit(link->batch[reads]);
	if (error) {
		atomic_fetch_add(&node->life->failed, 1);
		return error;
	}
	link->running = true;
	link->since = many_now();
	return 0;
}

/* Check a transfer that is reported complete. The target's memory is mapped here, too. */
static void link_verify(struct worker *worker, struct node *node, uint32_t k)
{
	struct many *many = worker->many;
	struct link *link = &node->links[k];
	const uint32_t bytes = many->options.bytes, target = link->shared->target;
	uint32_t number = atomic_load(&link->ledger->submitted);

	if (link->moved % 2) {
		if (!many_is(node->buffers + (size_t)bytes * (2 * k + 1), bytes, link->epoch))
			many_wrong(many, node->life,
				   "n%u read from n%u bytes that were never written", node->number,
				   target);
	} else {
		if (!many_is(many_badge(many, target, link->target_life) +
				     many_slot(many, k, worker->self->life),
			     bytes, many_word(node->number, k, number)))
			many_wrong(many, node->life,
				   "n%u: write %u to n%u is complete, but its bytes are not there",
				   node->number, number, target);
		atomic_store(&link->ledger->completed, number);
	}
	atomic_fetch_add(&node->life->completed, 1);
}

static void count_error(struct many *many, int error)
{
	atomic_fetch_add(&many->errors[-error < MANY_ERRNO ? -error : 0], 1);
}

/* Do what is due on this link. True: something was due. */
static bool link_turn(struct worker *worker, struct node *node, uint32_t k, bool begin)
{
	struct link *link = &node->links[k];
	int64_t now = many_now();
	int error;

	if (link->running) {
		error = wh_batch_test(link->batch[link->moved % 2]);
		if (error == -EAGAIN) {
			if (now - link->since > MANY_PATIENCE) {
				atomic_fetch_add(&node->life->hung, 1);
				link->since = now;
			}
			return false;
		}
		if (!error)
			error = wh_batch_status(link->batch[link->moved % 2]);
		link->running = false;
		link->next = now + (error ? RETRY : worker->pace);
		if (error) {
			atomic_fetch_add(&node->life->failed, 1);
			count_error(worker->many, error);
		} else {
			link_verify(worker, node, k);
			link->moved++;
		}
		return true;
	}
	if (!begin || now < link->next)
		return false;
	if (!link->peer) {
		if (connect_link(worker, node, k, OPEN_AGAIN_TIMEOUT))
			link->next = many_now() + RETRY;
		return true;
	}
	error = link_submit(worker, node, k);
	if (!error)
		return true;
	count_error(worker->many, error);
	link->next = now + RETRY;
	if (error == -ESTALE && link_disconnect(link))
		many_wrong(worker->many, node->life, "n%u cannot close a peer: %.150s",
			   node->number, wh_error_text());
	return true;
}

/* Serve every link once; returns how many still have transfers in flight. */
static uint32_t links_sweep(struct worker *worker, bool begin, bool *worked)
{
	uint32_t running = 0;

	*worked = false;
	for (uint32_t i = 0; i < worker->self->count; i++)
		for (uint32_t k = 0; k < worker->many->options.degree; k++) {
			*worked |= link_turn(worker, &worker->nodes[i], k, begin);
			running += worker->nodes[i].links[k].running;
		}
	return running;
}

static void worker_doze(void)
{
	nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
}

static void worker_move(struct worker *worker, uint32_t rounds, struct many_answer *answer)
{
	struct many_options *options = &worker->many->options;
	struct link *link;

	worker->pace = 0;
	for (uint32_t round = 0; round < 2 * rounds && !answer->error; round++)
		for (uint32_t i = 0; i < worker->self->count * options->degree && !answer->error;
		     i++) {
			struct node *node = &worker->nodes[i / options->degree];
			int error;

			link = &node->links[i % options->degree];
			error = link_submit(worker, node, i % options->degree);
			if (!error)
				error = wh_batch_wait_for(link->batch[link->moved % 2],
							  MANY_PATIENCE);
			if (!error)
				error = wh_batch_status(link->batch[link->moved % 2]);
			link->running = false;
			if (error) {
				answer_failed(answer, error, "moving bytes", node->number);
				continue;
			}
			link_verify(worker, node, i % options->degree);
			link->moved++;
		}
}

/* Move bytes until the next order arrives. */
static void worker_run(struct worker *worker)
{
	const struct many_options *options = &worker->many->options;
	struct pollfd order = { .fd = worker->self->fd, .events = POLLIN };
	int64_t links = (int64_t)options->engines * options->degree;
	bool worked;

	worker->pace = links * MANY_SECOND / options->rate;
	/* Start the links at different times. */
	for (uint32_t i = 0; i < worker->self->count * options->degree; i++)
		worker->nodes[i / options->degree].links[i % options->degree].next =
			many_now() + worker->pace * i / (worker->self->count * options->degree);
	while (poll(&order, 1, 0) == 0) {
		links_sweep(worker, true, &worked);
		if (!worked)
			worker_doze();
	}
	while (links_sweep(worker, false, &worked))
		if (!worked)
			worker_doze();
}

/* ---- the cost of a peer ---------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void open_several(struct worker *worker, const struct many_order *order,
			 struct many_answer *answer)
{
	uint64_t *us = calloc(order->count, sizeof(*us)), sum = 0;
	char name[32];

	worker->several = calloc(order->count, sizeof(struct wh_peer *));
	snprintf(name, sizeof(name), "wherry://n%u", order->to);
	for (; us && worker->several && worker->several_count < order->count;
	     worker->several_count++) {
		int64_t begun = many_now();
		int error = wh_peer_open(worker->nodes[order->from - worker->self->first].engine,
					 name, NULL, &worker->several[worker->several_count]);

		if (error) {
			answer_failed(answer, error, "connecting", order->from);
			break;
		}
		us[worker->several_count] = (uint64_t)(many_now() - begun) / 1000;
		sum += us[worker->several_count];
	}
	if (us && !answer->error) {
		qsort(us, order->count, sizeof(*us), by_size);
		answer->value[0] = sum / order->count;
		answer->value[1] = us[order->count / 2];
		answer->value[2] = us[(uint64_t)order->count * 99 / 100];
		answer->value[3] = us[order->count - 1];
	}
	free(us);
}

static void close_several(struct worker *worker)
{
	while (worker->several_count)
		wh_peer_close(worker->several[--worker->several_count]);
	free(worker->several);
	worker->several = NULL;
}

/* ---- orders ---------------------------------------------------------------------------------- */

/* False: it was the last order. */
static bool worker_obey(struct worker *worker, const struct many_order *order)
{
	struct many_answer answer = { .error = 0 };

	switch (order->what) {
	case MANY_OPEN:
		open_nodes(worker, &answer);
		break;
	case MANY_CONNECT:
		connect_all(worker, &answer);
		break;
	case MANY_MOVE:
		worker_move(worker, order->count, &answer);
		break;
	case MANY_OPEN_PEERS:
		open_several(worker, order, &answer);
		break;
	case MANY_CLOSE_PEERS:
		close_several(worker);
		break;
	case MANY_RUN:
		worker_run(worker);
		return true; /* the end of the move is answered */
	case MANY_CLOSE:
		close_nodes(worker, &answer);
		break;
	default:
		break;
	}
	return send(worker->self->fd, &answer, sizeof(answer), MSG_NOSIGNAL) == sizeof(answer) &&
	       order->what != MANY_CLOSE;
}

int many_worker(struct many *many, const struct many_worker *self)
{
	struct worker worker = { .many = many, .self = self };
	struct many_order order;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	worker.nodes = calloc(self->count, sizeof(*worker.nodes));
	if (!worker.nodes)
		return 1;
	while (recv(self->fd, &order, sizeof(order), 0) == sizeof(order) &&
	       worker_obey(&worker, &order))
		;
	free(worker.nodes);
	return 0;
}
