/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport's operations table, a peer's state, and the fragments that wait for a
 * connection: which connections a fragment may use, and which requests they pull from it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu/region-window.h"
#include "gpu/staging.h"
#include "gpu/stream.h"
#include "memory/memory.h"
#include "transport/copier-file.h"
#include "transport/tcp/tcp.h"
#include "util/clock.h"
#include "util/futex.h"
#include "util/turns.h"

/* fragment.owner: more than one connection has pulled requests of it. */
#define SEVERAL ((void *)1)

#define PATIENCE_LEAST (10 * WH_SECOND) /* peer_patience() */
#define LOOK_PAUSE (15 * WH_SECOND) /* of peer_look(), at most, while nothing is outstanding */

/* ---- sockets ----------------------------------------------------------- */

ssize_t tcp_receive(int fd, struct wh_channel *channel, struct iovec *vector, int count,
		    size_t want, struct tcp_in *in, size_t tail)
{
	struct iovec alone;
	size_t room;
	ssize_t got;

	if (in->start) {
		memmove(in->bytes, in->bytes + in->start, in->length);
		in->start = 0;
	}
	room = in->room - in->length;
	if (room > tail)
		room = tail;
	if (!vector)
		vector = &alone;
	vector[count] = (struct iovec){ in->bytes + in->length, room };
	got = wh_channel_receive(fd, channel, vector, count + 1);
	if (got > 0 && (size_t)got > want)
		in->length += (uint32_t)((size_t)got - want);
	return got;
}

int tcp_connect(struct wh_engine *engine, const struct sockaddr_storage *address)
{
	int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error;

	if (fd < 0)
		return -errno;
	wh_socket_tune(wh_engine_config(engine), fd);
	wh_socket_unpace(fd, address);
	if (connect(fd, (const struct sockaddr *)address,
		    address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
						     sizeof(struct sockaddr_in)) &&
	    errno != EINPROGRESS) {
		error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

/* ---- fragments --------------------------------------------------------- */

/* Remove a fragment from the list that it waits in. Under tcp.lock. */
static void fragment_take_out(struct wh_fragment *fragment)
{
	if (tcp_of(fragment)->alone && fragment->link.next)
		atomic_fetch_sub(&((struct tcp_client *)fragment->owner)->waiting, 1);
	wh_list_remove(&fragment->link);
}

/* Drop the bytes of a fragment that no connection has pulled. Under tcp.lock. True: nothing of it
 * is outstanding, and the caller has to complete it. */
static bool fragment_drop_rest(struct wh_fragment *fragment)
{
	uint64_t rest = fragment->cursor.left;

	fragment_take_out(fragment);
	fragment->cursor.left = 0;
	return rest && atomic_fetch_sub(&fragment->left, rest) == rest;
}

static void fragments_fail(struct wh_list *list, int error, const char *text, struct wh_list *done)
{
	while (!wh_list_empty(list)) {
		struct wh_fragment *fragment = wh_container(list->next, struct wh_fragment, link);

		wh_fragment_fail(fragment, UINT64_MAX, error, "%s", text);
		if (fragment_drop_rest(fragment))
			wh_list_append(done, &fragment->link);
	}
}

void tcp_fail_waiting(struct tcp_peer *tcp, struct tcp_client *client, int error, const char *text)
{
	struct wh_list done;

	wh_list_init(&done);
	pthread_mutex_lock(&tcp->lock);
	if (client)
		fragments_fail(&client->mine, error, text, &done);
	if (!client || (!client->latency && !atomic_load(&tcp->serving)))
		fragments_fail(&tcp->shared, error, text, &done);
	pthread_mutex_unlock(&tcp->lock);
	tcp_fragments_done(&done);
}

void tcp_peer_kick(struct tcp_peer *tcp)
{
	for (unsigned i = 0; i < tcp->count; i++) {
		struct tcp_client *client = atomic_load(&tcp->clients[i]);

		if (client)
			tcp_client_kick(client, true);
	}
}

bool tcp_share_waiting(struct tcp_peer *tcp, struct tcp_client *client)
{
	pthread_mutex_lock(&tcp->lock);
	while (atomic_load(&tcp->serving) && !wh_list_empty(&client->mine)) {
		struct wh_fragment *fragment =
			wh_container(client->mine.next, struct wh_fragment, link);

		fragment_take_out(fragment);
		tcp_of(fragment)->alone = false;
		atomic_store_explicit(&fragment->owner, NULL, memory_order_relaxed);
		wh_list_append(&tcp->shared, &fragment->link);
	}
	pthread_mutex_unlock(&tcp->lock);
	return atomic_load(&tcp->serving);
}

/* The largest request, in bytes, of a fragment of `bytes`. A shared fragment gets half-size
 * requests, so that its connections finish together, unless it fills a full-size request on each of
 * them: larger requests are faster. */
static uint64_t request_bytes(const struct tcp_peer *tcp, uint64_t bytes, bool alone)
{
	uint64_t most =
		(uint64_t)wh_engine_config(wh_peer_engine(tcp->peer))->number[WH_SETTING_SLICE];

	return alone || bytes <= most || bytes / most >= tcp->count ? most : most / 2;
}

/* Does the connection have so much more outstanding than another that it should leave shared
 * fragments to that one? A socket buffers far more than it has transmitted, so without this limit
 * one connection could pull everything. It tries again when its next response arrives. */
static bool client_is_ahead(struct tcp_peer *tcp, const struct tcp_client *client)
{
	uint32_t load = atomic_load_explicit(&client->outstanding, memory_order_relaxed);

	for (unsigned i = 0; i < tcp->count; i++) {
		struct tcp_client *other = atomic_load(&tcp->clients[i]);

		if (other && load > TCP_AHEAD + atomic_load_explicit(&other->outstanding,
								     memory_order_relaxed))
			return true;
	}
	return false;
}

bool tcp_pull(struct tcp_client *client, struct tcp_request *request)
{
	struct tcp_peer *tcp = client->tcp;
	uint64_t most, bytes = 0;
	struct wh_list *list;
	struct wh_fragment *fragment;
	struct wh_cursor cursor;
	struct wh_extent_pair pair;
	bool found = false;
	void *owner;

	pthread_mutex_lock(&tcp->lock);
	list = wh_list_empty(&client->mine) && !client->latency ? &tcp->shared : &client->mine;
	fragment = tcp_stage_choose(client, list);
	if (!fragment)
		goto out;
	most = request_bytes(tcp, fragment->bytes, tcp_of(fragment)->alone);
	if (fragment->op == WH_READ && client->read_bytes >= TCP_READ_AHEAD * most)
		goto out;
	if ((tcp_of(fragment)->staged || tcp_of(fragment)->lent) && most > WH_SLOT)
		most = WH_SLOT;
	if (list == &tcp->shared && client_is_ahead(tcp, client))
		goto out;
	cursor = fragment->cursor;
	request->count = 0;
	while (bytes < most && request->count < WH_REQUEST_EXTENTS &&
	       wh_fragment_next(fragment, &cursor, most - bytes, &pair)) {
		bytes += pair.length;
		request->count++;
	}
	request->fragment = fragment;
	request->start = fragment->cursor;
	request->start.left = bytes;
	fragment->cursor = cursor;
	if (!cursor.left)
		fragment_take_out(fragment);
	owner = atomic_load_explicit(&fragment->owner, memory_order_relaxed);
	atomic_store_explicit(&fragment->owner,
			      !owner || owner == client ? (void *)client : SEVERAL,
			      memory_order_relaxed);
	found = true;
out:
	pthread_mutex_unlock(&tcp->lock);
	return found;
}

/* ---- choosing connections ---------------------------------------------- */

/* The connection `index`, allocated on first use. NULL: no memory. */
static struct tcp_client *peer_client(struct tcp_peer *tcp, unsigned index)
{
	struct tcp_client *client = atomic_load(&tcp->clients[index]);

	if (client)
		return client;
	pthread_mutex_lock(&tcp->lock);
	client = atomic_load(&tcp->clients[index]);
	if (!client) {
		client = tcp_client_new(tcp, index);
		atomic_store(&tcp->clients[index], client);
	}
	pthread_mutex_unlock(&tcp->lock);
	return client;
}

/* The connection with the least work; the first of several, so that few are opened. One that the
 * peer did not serve comes last. */
static struct tcp_client *peer_idlest_client(struct tcp_peer *tcp)
{
	uint32_t least = UINT32_MAX, load;
	unsigned best = 0;

	for (unsigned i = 0; i < tcp->count && least; i++) {
		struct tcp_client *client = atomic_load(&tcp->clients[i]);

		load = client ? atomic_load_explicit(&client->outstanding, memory_order_relaxed) +
					atomic_load_explicit(&client->waiting,
							     memory_order_relaxed) :
				0;
		if (client && atomic_load_explicit(&client->unserved, memory_order_relaxed))
			load = UINT32_MAX - 1;
		if (load < least) {
			least = load;
			best = i;
		}
	}
	return peer_client(tcp, best);
}

/* Append a fragment to the list of `only`, or to the shared list. False: it has failed and is
 * complete. */
static bool fragment_enqueue(struct tcp_peer *tcp, struct wh_fragment *fragment,
			     struct tcp_client *only)
{
	bool dropped = false, waiting = false;

	pthread_mutex_lock(&tcp->lock);
	atomic_store_explicit(&fragment->owner, only, memory_order_relaxed);
	tcp_of(fragment)->alone = only;
	if (atomic_load(&tcp->lost)) {
		wh_fragment_fail(fragment, UINT64_MAX, -ECONNRESET, "the peer was lost");
		dropped = fragment_drop_rest(fragment);
	} else if (atomic_load(&fragment->cancelled)) {
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
		dropped = fragment_drop_rest(fragment);
	} else {
		wh_list_append(only ? &only->mine : &tcp->shared, &fragment->link);
		if (only)
			atomic_fetch_add(&only->waiting, 1);
		waiting = true;
	}
	pthread_mutex_unlock(&tcp->lock);
	if (dropped)
		wh_fragment_done(fragment);
	return waiting;
}

/* Through which slots does the fragment's local memory have to go? Those of a GPU if any belongs to
 * one, else those for files if any is one, else none: WH_SLOT_USES. */
static enum wh_slot_use fragment_slots(const struct wh_fragment *fragment)
{
	const struct wh_region *last = NULL, *local;
	enum wh_slot_use slots = WH_SLOT_USES;

	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		local = wh_fragment_local(fragment, i);
		if (local != last && wh_kind_on_gpu(local->entry.kind))
			return WH_SLOT_INITIATOR;
		if (local != last && local->entry.kind == WH_MEMORY_FILE)
			slots = WH_SLOT_FILE_INITIATOR;
		last = local;
	}
	return slots;
}

static bool fragment_on_gpu(const struct wh_fragment *fragment)
{
	return fragment_slots(fragment) == WH_SLOT_INITIATOR;
}

/* Should the loops move the fragment's bytes? If the program has many batches in flight, the thread
 * that submits and waits would move the bytes of all, one after the other, however many connections
 * there are. Long reads stay with it: of 1 MiB each, over 4 connections on 2 CPUs, it receives 9.3
 * GB/s where the loops receive 7.8. */
static bool fragment_hand_over(const struct tcp_peer *tcp, const struct wh_fragment *fragment)
{
	uint64_t most = fragment->op == WH_READ ? TCP_HANDED_READ : UINT64_MAX;

	return fragment->priority != WH_PRIORITY_LATENCY && fragment->bytes >= TCP_HANDED &&
	       fragment->bytes <= most && wh_batch_unseen(fragment->batch) > tcp->inline_most;
}

static void client_start(struct tcp_client *client, bool send, bool watched, bool now)
{
	if (send)
		tcp_client_push(client, watched);
	else
		tcp_client_kick(client, now);
}

static bool client_is_idle(struct tcp_peer *tcp, unsigned index)
{
	struct tcp_client *client = atomic_load(&tcp->clients[index]);

	return !client || !atomic_load_explicit(&client->outstanding, memory_order_relaxed);
}

/* Start as many connections on a shared fragment as it has requests, idle ones first. The first one
 * rotates, so that consecutive small fragments use all connections. */
static void peer_start_clients(struct tcp_peer *tcp, uint64_t requests, bool small)
{
	bool all = requests >= tcp->count;
	unsigned first = all ? 0 : atomic_fetch_add(&tcp->turn, (uint32_t)requests);
	unsigned turns = all ? tcp->count : 2 * tcp->count;

	for (unsigned i = 0; i < turns && requests; i++) {
		unsigned index = (first + i) % tcp->count;
		struct tcp_client *client;

		if (!all && client_is_idle(tcp, index) != (i < tcp->count))
			continue;
		client = peer_client(tcp, index);
		if (client)
			client_start(client, small, false, true);
		requests--;
	}
}

static void tcp_submit_fragment(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct tcp_peer *tcp = state;
	bool latency = fragment->priority == WH_PRIORITY_LATENCY;
	uint64_t request = request_bytes(tcp, fragment->bytes, latency);
	uint64_t requests = (fragment->bytes + request - 1) / request;
	bool spin = wh_engine_config(wh_peer_engine(peer))->number[WH_SETTING_SPIN];
	bool handed = fragment_hand_over(tcp, fragment), alone;
	bool small = !handed && (fragment->bytes <= TCP_INLINE || fragment->op == WH_READ);
	/* In spin mode a batch progresses in the thread that waits for it, if there is one. */
	bool watched = spin && wh_batch_has_waiter(fragment->batch);
	enum wh_slot_use slots = fragment_slots(fragment);
	struct tcp_client *client;

	tcp_of(fragment)->staged = slots != WH_SLOT_USES;
	tcp_of(fragment)->slots = (uint8_t)slots;
	tcp_of(fragment)->system =
		slots == WH_SLOT_FILE_INITIATOR ? wh_fragment_file_system(fragment, NULL) : NULL;
	tcp_of(fragment)->windowed = false;
	tcp_of(fragment)->waits = tcp_is_of_files(peer, fragment, false);
	tcp_of(fragment)->lent =
		slots == WH_SLOT_USES && tcp_of(fragment)->waits && tcp_lent_fits(tcp, fragment);
	tcp_of(fragment)->waits |= slots == WH_SLOT_FILE_INITIATOR;
	if (slots == WH_SLOT_INITIATOR &&
	    (fragment->op == WH_READ || fragment->bytes <= WH_REGION_WINDOW_FEW))
		tcp_window_open(fragment);
	if (slots == WH_SLOT_INITIATOR && tcp_window_of(fragment, request) &&
	    tcp_window_current(fragment)) {
		tcp_of(fragment)->windowed = true;
		tcp_of(fragment)->staged = false;
	}
	/* Without a first slot it would wait for one for ever. Planning has prepared those of each
	 * region's file system, and these may be of several. */
	if (tcp_of(fragment)->staged && wh_slots_prepare_file(wh_engine_gpus(wh_peer_engine(peer)),
							      slots, tcp_of(fragment)->system)) {
		wh_fragment_fail(fragment, UINT64_MAX, -ENOMEM, "staging: %s", wh_error_text());
		wh_fragment_done(fragment);
		return;
	}
	if (requests < fragment->transfers / WH_REQUEST_EXTENTS + 1)
		requests = fragment->transfers / WH_REQUEST_EXTENTS + 1;
	alone = latency || requests < 2 || tcp->count == 1;
	client = latency ? peer_client(tcp, tcp->count) :
		 alone   ? peer_idlest_client(tcp) :
			   peer_client(tcp, 0);
	if (!client) {
		wh_fragment_fail(fragment, UINT64_MAX, -ENOMEM, "no memory for a data connection");
		wh_fragment_done(fragment);
		return;
	}
	if (!fragment_enqueue(tcp, fragment, alone ? client : NULL))
		return;
	/* Another thread may have completed and freed the fragment by now. */
	if (alone)
		client_start(client, small, watched, false);
	else
		peer_start_clients(tcp, requests, small); /* a waiter can own only one connection */
}

/* Errors belong to the batch, so the submitting call must not report their text. */
static void tcp_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	wh_fail_begin();
	tcp_submit_fragment(peer, state, fragment);
	wh_fail_end(0);
}

static void tcp_cancel(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct tcp_peer *tcp = state;
	bool done = false;

	(void)peer;
	pthread_mutex_lock(&tcp->lock);
	/* Not in a list: pulled completely, or not yet submitted. */
	if (fragment->cursor.left && fragment->link.next) {
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
		done = fragment_drop_rest(fragment);
	}
	pthread_mutex_unlock(&tcp->lock);
	if (done)
		wh_fragment_done(fragment);
}

static void tcp_progress(struct wh_peer *peer, void *state, struct wh_batch *batch,
			 int64_t deadline)
{
	struct tcp_peer *tcp = state;
	struct tcp_client *owner = NULL;
	bool spin = wh_engine_config(wh_peer_engine(peer))->number[WH_SETTING_SPIN],
	     several = false, large = false;
	struct wh_fragment *fragment = NULL;

	pthread_mutex_lock(&tcp->lock);
	while ((fragment = wh_batch_fragment(batch, WH_TRANSPORT_TCP, fragment))) {
		void *of = atomic_load(&fragment->done) ? NULL : atomic_load(&fragment->owner);

		if (!of)
			continue;
		/* A staged fragment is completed by a GPU, not by a socket. */
		several |= tcp_of(fragment)->staged || of == SEVERAL || (owner && owner != of);
		large |= (fragment->bytes > TCP_INLINE && !spin) ||
			 fragment_hand_over(tcp, fragment);
		owner = of;
	}
	pthread_mutex_unlock(&tcp->lock);
	/* The loop already sends large fragments. Waiters that come and go would move the stream
	 * between their threads and the loop's, and so between CPUs. In spin mode the loop may not
	 * know of the fragment, so the waiter owns the connection. */
	if (owner && !several && !(large && deadline))
		tcp_client_own(owner, batch, deadline);
	for (unsigned i = 0; several && !deadline && i < tcp->count; i++) {
		struct tcp_client *client = atomic_load(&tcp->clients[i]);

		if (client && atomic_load(&client->outstanding))
			tcp_client_pump(client);
	}
}

static int tcp_abort(struct wh_peer *peer, void *state, struct wh_batch *batch, int64_t deadline)
{
	struct tcp_peer *tcp = state;

	(void)peer;
	(void)deadline;
	for (unsigned i = 0; i <= tcp->count; i++) {
		struct tcp_client *client = atomic_load(&tcp->clients[i]);

		if (client && tcp_client_carries(client, batch))
			tcp_client_break(client, -ECANCELED);
	}
	return 0;
}

/* ---- peers ------------------------------------------------------------- */

/* How long a connection may stand still while the peer owes bytes; like the owner's patience with a
 * silent session. A live peer serves its connections in turn, a few MiB each. */
static int64_t peer_patience(const struct wh_config *config)
{
	int64_t timeout = config->number[WH_SETTING_TIMEOUT] * WH_MS;

	return 2 * timeout > PATIENCE_LEAST ? 2 * timeout : PATIENCE_LEAST;
}

/* Close idle connections, break those that stand still, and send what waits for a response of
 * others that does not come. */
static void peer_look(struct wh_timer *timer)
{
	struct tcp_peer *tcp = wh_container(timer, struct tcp_peer, look);
	struct wh_engine *engine = wh_peer_engine(tcp->peer);
	const struct wh_config *config = wh_engine_config(engine);
	int64_t idle = config->number[WH_SETTING_IDLE] * WH_MS, now = wh_now();
	int64_t patience = peer_patience(config), pause = idle / 2;
	bool busy = false;

	for (unsigned i = 0; i <= tcp->count; i++) {
		struct tcp_client *client = atomic_load(&tcp->clients[i]);

		if (!client)
			continue;
		tcp_client_retire(client, now - idle);
		if (!tcp_client_watch(client, patience))
			continue;
		busy = true;
		tcp_client_kick(client, true);
	}
	if (pause > (busy ? patience / 4 : LOOK_PAUSE))
		pause = busy ? patience / 4 : LOOK_PAUSE;
	wh_timer_set(wh_engine_first_loop(engine), timer, now + pause + WH_MS);
}

/* Connect to the address of the control connection, and know whether that is near. On loop 0. */
static int peer_learn_address(struct tcp_peer *tcp, char why[WH_REFUSAL])
{
	atomic_store(&tcp->near, wh_engine_nearness(wh_peer_engine(tcp->peer),
						    wh_peer_welcome(tcp->peer)) != WH_ELSEWHERE);
	if (wh_peer_address(tcp->peer, &tcp->address))
		return 0;
	snprintf(why, WH_REFUSAL, "the peer is this engine itself, opened as \"self\"");
	return -EOPNOTSUPP;
}

/* How many batches in flight the submitting thread sends by itself: fragment_hand_over(). */
static uint32_t peer_inline_most(struct wh_peer *peer, unsigned connections)
{
	const struct wh_engine *engine = wh_peer_engine(peer);
	unsigned loops = wh_engine_loops(engine);

	if (loops < 2 || connections < 2 || wh_engine_config(engine)->number[WH_SETTING_SPIN])
		return UINT32_MAX; /* nobody to hand over to, or the waiters do it */
	return loops < TCP_FEW_LOOPS ? TCP_INLINE_FEW : TCP_INLINE_MANY;
}

static int tcp_peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	const struct wh_config *config = wh_engine_config(wh_peer_engine(peer));
	unsigned count = (unsigned)config->number[WH_SETTING_CONNECTIONS];
	struct tcp_peer *tcp = calloc(1, sizeof(*tcp) + (count + 1) * sizeof(tcp->clients[0]));
	int error;

	if (!tcp) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	tcp->peer = peer;
	tcp->count = count;
	tcp->inline_most = peer_inline_most(peer, count);
	error = peer_learn_address(tcp, why);
	if (error) {
		free(tcp);
		return error;
	}
	pthread_mutex_init(&tcp->lock, NULL);
	pthread_mutex_init(&tcp->lend_lock, NULL);
	wh_list_init(&tcp->shared);
	tcp->first_loop = wh_engine_next_loop(wh_peer_engine(peer));
	tcp->look.fire = peer_look;
	peer_look(&tcp->look);
	*state = tcp;
	return 0;
}

static void tcp_peer_close(struct wh_peer *peer, void *state)
{
	struct tcp_peer *tcp = state;

	(void)peer;
	wh_timer_clear(&tcp->look);
	/* One that is not shut may kick the others. */
	for (unsigned i = 0; i <= tcp->count; i++) {
		struct tcp_client *client = atomic_load(&tcp->clients[i]);

		if (client)
			tcp_client_shut(client);
	}
	for (unsigned i = 0; i <= tcp->count; i++) {
		struct tcp_client *client = atomic_load(&tcp->clients[i]);

		if (client)
			tcp_client_free(client);
	}
	wh_lender_close(&tcp->lender);
	pthread_mutex_destroy(&tcp->lend_lock);
	pthread_mutex_destroy(&tcp->lock);
	free(tcp);
}

static void tcp_peer_lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	struct tcp_peer *tcp = state;

	(void)peer;
	pthread_mutex_lock(&tcp->lock);
	atomic_store(&tcp->lost, true);
	atomic_fetch_add(&tcp->losses, 1);
	pthread_mutex_unlock(&tcp->lock);
	tcp_fail_waiting(tcp, NULL, error, text);
	for (unsigned i = 0; i <= tcp->count; i++) {
		struct tcp_client *client = atomic_load(&tcp->clients[i]);

		if (!client)
			continue;
		tcp_fail_waiting(tcp, client, error, text);
		tcp_client_lose(client, error, text);
	}
}

static int tcp_peer_again(struct wh_peer *peer, void *state, char why[WH_REFUSAL])
{
	struct tcp_peer *tcp = state;

	(void)peer;
	atomic_store(&tcp->lost, false);
	return peer_learn_address(tcp, why);
}

/* Describe how local GPU memory is moved. Returns the length of the text; 0 without GPU memory. */
static size_t batch_describe_gpu(struct wh_peer *peer, const struct tcp_peer *tcp,
				 const struct wh_batch *batch, char *out, size_t size)
{
	struct wh_region_windows *windows = wh_engine_region_windows(wh_peer_engine(peer));
	const struct wh_fragment *fragment = NULL;
	size_t used = 0;

	/* Another thread may unregister a region meanwhile. */
	pthread_mutex_lock(&windows->lock);
	while (!used && (fragment = wh_batch_fragment(batch, WH_TRANSPORT_TCP, fragment))) {
		bool latency = fragment->priority == WH_PRIORITY_LATENCY;
		const struct wh_region_window *window;

		if (!fragment_on_gpu(fragment))
			continue;
		window = fragment->op == WH_READ ?
				 tcp_window_of(fragment, request_bytes(tcp, UINT64_MAX, latency)) :
				 tcp_window_few(fragment);
		used = (size_t)(window ? snprintf(out, size, "CPU window (%s), ",
						  window->view->backend->name) :
					 snprintf(out, size, "pinned memory, "));
	}
	pthread_mutex_unlock(&windows->lock);
	return used < size ? used : 0;
}

/* Describe a region's GPU, or how its file is moved, which is the target if `op` is WH_READ.
 * Another thread may unregister the region meanwhile. */
static bool region_describe(struct wh_engine *engine, const struct wh_region *region, uint32_t op,
			    char *line, size_t size)
{
	struct wh_region_entry *entry = wh_region_entry_enter(wh_engine_regions(engine),
							      wh_region_entry_id(&region->entry));
	bool described;

	if (!entry)
		return false;
	if (region->registration->file)
		described = wh_file_describe_staged(region->registration->file,
						    op == WH_READ ? WH_WRITE : WH_READ, line, size);
	else
		described = region->registration->device &&
			    wh_gpus_describe(wh_engine_gpus(engine), region->registration->device,
					     line, size);
	wh_region_entry_leave(entry);
	return described;
}

/* Explain why extents of local GPU memory are copied one by one into pinned memory, if they are,
 * and how local files are moved. */
static void batch_describe_memory(struct wh_peer *peer, const struct wh_batch *batch, char *line,
				  size_t size)
{
	const struct wh_region *local, *last = NULL;
	const struct wh_fragment *fragment = NULL;
	bool described = false;

	while (!described && (fragment = wh_batch_fragment(batch, WH_TRANSPORT_TCP, fragment))) {
		for (uint64_t k = fragment->first;
		     k < fragment->first + fragment->count && !described; k++) {
			local = wh_fragment_local(fragment, k);
			described = local != last && region_describe(wh_peer_engine(peer), local,
								     fragment->op, line, size);
			last = local;
		}
	}
}

static bool batch_has_file(const struct wh_batch *batch)
{
	const struct wh_fragment *fragment = NULL;
	bool file = false;

	while (!file && (fragment = wh_batch_fragment(batch, WH_TRANSPORT_TCP, fragment)))
		file = fragment_slots(fragment) == WH_SLOT_FILE_INITIATOR;
	return file;
}

static void tcp_describe(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			 struct wh_description *out)
{
	struct tcp_peer *tcp = state;
	char secure[96] = "";
	bool lent = false;
	unsigned open = 0;
	bool unserved = false;
	size_t used, size = sizeof(out->how);

	for (unsigned i = 0; i <= tcp->count; i++) {
		struct tcp_client *client = atomic_load(&tcp->clients[i]);

		open += client && tcp_client_is_open(client);
		unserved |= client && tcp_client_is_unserved(client);
		if (client && !*secure)
			tcp_client_describe(client, secure, sizeof(secure));
	}
	used = batch_describe_gpu(peer, tcp, batch, out->how, size);
	if (!*secure && wh_engine_tls(wh_peer_engine(peer)))
		snprintf(secure, sizeof(secure), "encrypted: TLS 1.3");
	else if (!*secure && wh_peer_has_records(peer))
		snprintf(secure, sizeof(secure), "integrity: crc32c");
	tcp_lent_describe(tcp, batch, &lent, out->memory, sizeof(out->memory));
	if (!used && lent)
		used = (size_t)snprintf(out->how, size, "shared memory, ");
	else if (!used && !*secure && batch_has_file(batch)) /* there is no room for all of it */
		used = (size_t)snprintf(out->how, size, "file, ");
	if (open)
		used += (size_t)snprintf(out->how + used, size - used, "%u connection%s", open,
					 open == 1 ? "" : "s");
	else if (unserved)
		used += (size_t)snprintf(out->how + used, size - used, "no connection is served");
	else /* connections are opened on first use */
		used += (size_t)snprintf(out->how + used, size - used, "up to %u connections",
					 tcp->count);
	if (*secure && used < size)
		snprintf(out->how + used, size - used, ", %s", secure);
	if (!*out->memory)
		batch_describe_memory(peer, batch, out->memory, sizeof(out->memory));
}

/* Unlike the regions of a submitted batch, those of a plan may be unregistered meanwhile. */
static void region_open_window(struct wh_engine *engine, const struct wh_region *region)
{
	struct wh_region_entry *entry = wh_region_entry_enter(wh_engine_regions(engine),
							      wh_region_entry_id(&region->entry));

	if (!entry)
		return;
	wh_region_window_get(wh_container(entry, struct wh_region, entry));
	wh_region_entry_leave(entry);
}

static int tcp_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
			    struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL])
{
	int error = 0;

	/* The owner stages its own GPU memory, and its files, but for those on this host. */
	if (remote->kind == WH_MEMORY_FILE && wh_kind_on_host(local->entry.kind))
		error = tcp_lend(state);
	if (error)
		snprintf(why, WH_REFUSAL, "memory is still to be lent to the peer");
	if (wh_kind_on_host(local->entry.kind))
		return error;
	if (op == WH_READ && wh_kind_on_gpu(local->entry.kind)) /* so that wh_batch_explain() knows
								   the window before the transfer */
		region_open_window(wh_peer_engine(peer), local);
	error = wh_staging_prepare_region(wh_engine_regions(wh_peer_engine(peer)),
					  wh_engine_gpus(wh_peer_engine(peer)), local, op);
	if (error)
		snprintf(why, WH_REFUSAL, "%.*s", WH_REFUSAL - 1, wh_error_text());
	return error;
}

/* Open all connections, also the one for latency batches. */
static int tcp_prepare(struct wh_peer *peer, void *state, const struct wh_batch *batch,
		       int64_t deadline, char why[WH_REFUSAL])
{
	struct wh_turns *turns = wh_engine_turns(wh_peer_engine(peer));
	struct tcp_peer *tcp = state;
	unsigned open, waiting;
	int error, failed = 0;
	bool unserved = false;
	uint64_t turn;
	uint32_t seen;

	(void)batch;
	for (unsigned i = 0; i <= tcp->count; i++) {
		struct tcp_client *client = peer_client(tcp, i);

		if (!client) {
			snprintf(why, WH_REFUSAL, "no memory for a data connection");
			return -ENOMEM;
		}
		tcp_client_want(client);
	}
	for (;;) {
		turn = turns ? wh_turns_seen(turns) : 0;
		seen = atomic_load(&tcp->changed);
		open = waiting = 0;
		for (unsigned i = 0; i <= tcp->count; i++) {
			struct tcp_client *client = atomic_load(&tcp->clients[i]);
			/* Before the state: one that opens in between is not taken for failed. */
			bool wanted = atomic_load(&client->wanted);

			if (tcp_client_is_open(client))
				open++;
			else if (wanted)
				waiting++;
			else
				failed = tcp_client_error(client);
			unserved |= !wanted && atomic_load(&client->unserved);
		}
		if (!waiting || atomic_load(&tcp->lost) || wh_now() >= deadline)
			break;
		if (turns)
			wh_turns_run(turns, turn, deadline);
		else
			wh_futex_wait(&tcp->changed, seen, deadline);
	}
	if (open > tcp->count)
		return 0;
	error = atomic_load(&tcp->lost) ? -ECONNRESET : waiting ? -ETIMEDOUT : -EHOSTUNREACH;
	snprintf(why, WH_REFUSAL, "%u of %u data connections are open; %s%s", open, tcp->count + 1,
		 error == -ECONNRESET ? "the peer is lost" :
		 error == -ETIMEDOUT  ? "the peer does not answer in time" :
					"another one cannot be opened: ",
		 error != -EHOSTUNREACH ? "" :
		 unserved               ? TCP_UNSERVED :
					  strerror(-failed));
	return error;
}

const struct wh_transport wh_transport_tcp = {
	.name = "tcp",
	.capabilities = WH_CAN_READ | WH_CAN_WRITE | WH_CAN_ACCEPT | WH_CAN_PROGRESS |
			WH_CAN_ABORT | WH_USES_STAGING | WH_IS_NETWORKED,
	.role = WH_ROLE_DATA,
	.peer_open = tcp_peer_open,
	.peer_close = tcp_peer_close,
	.peer_lost = tcp_peer_lost,
	.peer_again = tcp_peer_again,
	.is_reachable = tcp_is_reachable,
	.prepare = tcp_prepare,
	.submit = tcp_submit,
	.progress = tcp_progress,
	.cancel = tcp_cancel,
	.abort = tcp_abort,
	.describe = tcp_describe,
	.session_accept = tcp_session_accept,
	.session_close = tcp_session_close,
	.session_abort = tcp_session_abort,
};
