/* SPDX-License-Identifier: Apache-2.0 */
/* The network: connections whose bytes take time, arrive in pieces, get stuck, or are lost with a
 * reset; partitions, closed windows, black holes, hosts that are down. Bytes of a connection never
 * change their order and are never lost without its end, as TCP promises. */
#include <errno.h>
#include <string.h>

#include "world.h"

#define RETRANSMIT (200 * SIM_MS) /* the first time; doubled each time, up to RETRANSMIT_MOST */
#define RETRANSMIT_MOST (10 * SIM_SEC)
#define GIVE_UP (924 * SIM_SEC) /* Linux, net.ipv4.tcp_retries2 = 15 */
#define GIVE_UP_CONNECTING (127 * SIM_SEC) /* net.ipv4.tcp_syn_retries = 6 */

static struct end **ends; /* those that are not closed, in the order of their making */
static int end_count, end_room, last_number;
static int opened[SIM_HOSTS][SIM_HOSTS]; /* connections, from one host to another */
static int64_t cut_until[SIM_HOSTS][SIM_HOSTS];
static int64_t slow_until;
static int slow_factor = 1;
static int64_t (*watch)(const struct sim_packet *packet, void *arg);
static void *watch_arg;

static void deliver(void *arg);

/* ---- what a path does ------------------------------------------------------------------------ */

static int64_t latency(void)
{
	int64_t ns = sim_options.latency_us * 1000LL +
		     (int64_t)sim_draw_world((uint64_t)sim_options.jitter_us * 1000 + 1);

	/* Now and then a packet is lost, and sent again. */
	if (sim_chance(2))
		ns += RETRANSMIT;
	return slow_until > sim_time ? ns * slow_factor : ns;
}

bool network_reaches(int from_host, int to_host)
{
	return !node_is_down(from_host) && !node_is_down(to_host) &&
	       (from_host == to_host || cut_until[from_host][to_host] <= sim_time);
}

static bool path_is_open(int from, int to)
{
	return network_reaches(node_of(from)->host, node_of(to)->host);
}

void sim_network_cut(int from_host, int to_host, int64_t ns)
{
	cut_until[from_host][to_host] = sim_time + ns;
}

void sim_network_slow(int64_t ns, int factor)
{
	slow_until = sim_time + ns;
	slow_factor = factor;
}

void sim_network_heal(void)
{
	memset(cut_until, 0, sizeof(cut_until));
	slow_until = 0;
	for (int i = 0; i < end_count; i++)
		if (ends[i]->black_until < INT64_MAX)
			ends[i]->black_until = 0;
}

void sim_network_watch(int64_t (*delay)(const struct sim_packet *packet, void *arg), void *arg)
{
	watch = delay;
	watch_arg = arg;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void end_changed(struct end *end)
{
	end->edges++;
	node_changed(end->node);
}

static size_t buffer_size(int most)
{
	static const int sizes[] = { 4608, 8192, 16384, 65536, 212992, 1 << 20, 4 << 20 };
	int size;

	do
		size = sizes[sim_draw_world(sizeof(sizes) / sizeof(*sizes))];
	while (size > most && size > sizes[0]);
	return (size_t)size;
}

struct end *end_new(int node, int family)
{
	struct end *end = calloc(1, sizeof(*end));

	if (end_count == end_room)
		ends = sim_grow(ends, end_room += 256, sizeof(struct end *));
	ends[end_count++] = end;
	end->number = last_number++;
	end->node = node;
	end->family = family;
	end->tail = &end->head;
	end->own.host = node >= 0 ? node_of(node)->host : 0;
	end->other.host = -1;
	end->sndbuf = buffer_size(sim_options.sndbuf);
	end->rcvbuf = buffer_size(sim_options.rcvbuf);
	return end;
}

static void end_forget(struct end *end)
{
	int at = 0;

	while (at < end_count && ends[at] != end)
		at++;
	if (at < end_count)
		memmove(ends + at, ends + at + 1, (size_t)(--end_count - at) * sizeof(*ends));
}

uint32_t end_events(const struct end *end)
{
	uint32_t events = 0;

	if (end->state == END_FRESH)
		return EPOLLOUT | EPOLLHUP | (end->error ? EPOLLERR | EPOLLIN : 0);
	if (end->state == END_CONNECTING)
		return 0;
	if (end->state == END_LISTENS)
		return end->waiting_count ? EPOLLIN : 0;
	if (end->in_length || end->fin || end->shut_in || end->reset)
		events |= EPOLLIN;
	if (end->fin || end->shut_in || end->reset)
		events |= EPOLLRDHUP;
	if (end->shut_out || end->reset || (end->sndbuf - end->pipe) * 3 >= end->sndbuf)
		events |= EPOLLOUT;
	if (end->error)
		events |= EPOLLERR;
	if (end->reset || (end->shut_out && (end->fin || end->shut_in)))
		events |= EPOLLHUP;
	return events;
}

static void end_drop_out(struct end *end)
{
	struct segment *segment;

	while ((segment = end->head)) {
		end->head = segment->next;
		free(segment);
	}
	end->tail = &end->head;
	end->pipe = 0;
	end->window_closed = false;
}

static void end_break(struct end *end, int error)
{
	if (end->reset)
		return;
	sim_trace("# end %d (node %d) breaks: %s", end->number, end->node, strerrorname_np(error));
	end->reset = true;
	end->error = error;
	end_changed(end);
	end_drop_out(end);
	sim_counts.resets++;
}

/* An RST has arrived at this end. */
static void reset_arrives(void *arg)
{
	struct end *end = arg;

	if (end->closed || !node_of(end->node)->alive)
		return;
	if (end->state == END_CONNECTING) {
		end->state = END_FRESH;
		end->error = ECONNREFUSED;
		end_changed(end);
	} else if (end->state == END_OPEN) {
		end_break(end, end->fin ? EPIPE : ECONNRESET);
	}
}

/* Send an RST to this end, if a packet from the node `from` reaches it. */
static void reset_send(struct end *end, int from)
{
	if (path_is_open(from, end->node))
		event_at(sim_time + latency(), reset_arrives, end);
}

static void end_arm(struct end *end, int64_t when)
{
	if (end->armed && end->armed <= when && end->armed > sim_time)
		return;
	end->armed = when;
	event_at(when, deliver, end);
}

/* Nothing gets through to the other side. */
static void end_stuck(struct end *end)
{
	int64_t limit = end->user_timeout ? end->user_timeout : GIVE_UP;
	int64_t last;

	if (!end->stuck_since)
		end->stuck_since = sim_time;
	last = end->stuck_since + limit;
	if (end->rto < RETRANSMIT)
		end->rto = RETRANSMIT;
	if (sim_time >= last) {
		end_break(end, ETIMEDOUT);
		return;
	}
	end_arm(end, sim_time + end->rto < last ? sim_time + end->rto : last);
	end->rto = end->rto * 2 < RETRANSMIT_MOST ? end->rto * 2 : RETRANSMIT_MOST;
}

/* ---- bytes on their way ---------------------------------------------------------------------- */

static void end_append(struct end *end, const uint8_t *bytes, size_t length)
{
	if (end->in_start) {
		memmove(end->in, end->in + end->in_start, end->in_length);
		end->in_start = 0;
	}
	if (end->in_length + length > end->in_room) {
		end->in_room = end->in_length + length + 4096;
		end->in = sim_grow(end->in, end->in_room, 1);
	}
	memcpy(end->in + end->in_length, bytes, length);
	end->in_length += length;
	end_changed(end);
}

/* The other side takes nothing. The connection may break here. */
static void window_is_closed(struct end *end)
{
	if (!end->window_closed)
		end->window_closed_since = sim_time;
	end->window_closed = true;
	if (!sim_options.zero_window_kills || !end->user_timeout)
		return;
	if (sim_time - end->window_closed_since >= end->user_timeout)
		end_break(end, ETIMEDOUT);
	else
		end_arm(end, end->window_closed_since + end->user_timeout);
}

/* Can the first segment be delivered? False: it was seen to what follows from that. */
static bool segment_gets_through(struct end *end, const struct segment *segment)
{
	struct end *peer = end->peer;

	if (segment->at > sim_time) {
		end_arm(end, segment->at);
		return false;
	}
	if (!path_is_open(end->node, peer->node) || end->black_until > sim_time) {
		end_stuck(end);
		return false;
	}
	/* Its machine is up and knows nothing of the connection. */
	if ((peer->closed || peer->vanished) && !segment->fin) {
		if (!path_is_open(peer->node, end->node)) {
			end_stuck(end);
			return false;
		}
		if (!end->closed)
			reset_send(end, peer->node);
		end_drop_out(end);
		return false;
	}
	end->stuck_since = end->rto = 0;
	return true;
}

/* Take as much of a segment as there is room for. False: there is some left, or the connection is
 * broken, and the segment gone with it. */
static bool segment_take(struct end *end, struct segment *segment)
{
	struct end *peer = end->peer;
	size_t room, part;

	if (segment->fin) {
		peer->fin = true;
		end_changed(peer);
		return true;
	}
	if (peer->reset)
		return true;
	room = peer->rcvbuf > peer->in_length ? peer->rcvbuf - peer->in_length : 0;
	part = segment->length - segment->done;
	part = part < room ? part : room;
	if (part) {
		end->window_closed = false;
		end_append(peer, segment->bytes + segment->done, part);
		segment->done += part;
		end->pipe -= part;
		end_changed(end);
	}
	if (segment->done == segment->length)
		return true;
	window_is_closed(end);
	return false;
}

/* Deliver what is due. */
static void deliver(void *arg)
{
	struct end *end = arg;
	struct segment *segment;

	if (end->armed && end->armed <= sim_time)
		end->armed = 0;
	while ((segment = end->head)) {
		if (end->reset || !end->peer || !node_of(end->node)->alive ||
		    !segment_gets_through(end, segment) || !segment_take(end, segment))
			return;
		end->head = segment->next;
		if (!end->head)
			end->tail = &end->head;
		free(segment);
	}
}

/* How much of `length` bytes is one segment. */
static size_t segment_length(size_t length)
{
	size_t part = (size_t)sim_options.segment;

	if (length <= 4096 && sim_chance(100))
		part = 1 + sim_draw_world(64);
	else if (sim_chance(300))
		part = 1 + sim_draw_world(part);
	/* Not too many for large ones. */
	if (part * 64 < length)
		part = length / 64;
	return part < length ? part : length;
}

static int64_t segment_delay(const struct end *end, const uint8_t *bytes, size_t length, bool fin)
{
	struct sim_packet packet = {
		.from_host = node_of(end->node)->host,
		.to_host = node_of(end->peer->node)->host,
		.connection = end->ordinal,
		.from_initiator = end->initiator,
		.fin = fin,
		.offset = end->sent,
		.length = length,
		.bytes = bytes,
	};

	return watch ? watch(&packet, watch_arg) : 0;
}

static void end_send(struct end *end, const uint8_t *bytes, size_t length, bool fin)
{
	do {
		size_t part = segment_length(length);
		struct segment *segment = calloc(1, sizeof(*segment) + part);
		int64_t when = sim_time + latency();

		segment->length = part;
		segment->fin = fin;
		if (part)
			memcpy(segment->bytes, bytes, part);
		if (part && sim_options.flip && (int)sim_draw_world(1000000) < sim_options.flip) {
			sim_counts.flipped++;
			segment->bytes[sim_draw_world(part)] ^= (uint8_t)(1u << sim_draw_world(8));
		}
		when += segment_delay(end, bytes, part, fin);
		if (end->last > when)
			when = end->last;
		when += (int64_t)part * 8000 / sim_options.mbit;
		end->last = segment->at = when;
		*end->tail = segment;
		end->tail = &segment->next;
		end->pipe += part;
		end->sent += part;
		bytes += part;
		length -= part;
	} while (length);
	end_arm(end, end->head->at > sim_time ? end->head->at : sim_time + 1);
}

long end_write(struct end *end, const struct iovec *parts, size_t count)
{
	size_t room, total = 0;

	if (end->error) {
		int error = end->error;

		end->error = 0;
		return -error;
	}
	if (end->state != END_OPEN)
		return end->state == END_CONNECTING ? -EAGAIN : -EPIPE;
	if (end->reset || end->shut_out)
		return -EPIPE;
	for (size_t i = 0; i < count; i++)
		total += parts[i].iov_len;
	room = end->sndbuf - end->pipe;
	if (total > room)
		total = room;
	else if (end->pipe && total > 1 && sim_chance(sim_options.short_write))
		total = 1 + sim_draw_world(total - 1);
	if (!total)
		return -EAGAIN;
	room = total;
	for (size_t i = 0; i < count && room; i++) {
		size_t part = parts[i].iov_len < room ? parts[i].iov_len : room;

		if (!part)
			continue;
		hash_bytes(parts[i].iov_base, part);
		end_send(end, parts[i].iov_base, part, false);
		room -= part;
	}
	sim_current->awake = 0;
	return (long)total;
}

static long end_take(struct end *end, const struct iovec *parts, size_t count, bool peek)
{
	size_t total = 0, done = 0;
	bool is_short;

	for (size_t i = 0; i < count; i++)
		total += parts[i].iov_len;
	total = total < end->in_length ? total : end->in_length;
	sim_current->awake = 0;
	is_short = total > 1 && sim_chance(sim_options.short_read);
	if (is_short)
		total = 1 + sim_draw_world(total - 1);
	for (size_t i = 0; i < count && done < total; i++) {
		size_t part = parts[i].iov_len;

		part = part < total - done ? part : total - done;
		memcpy(parts[i].iov_base, end->in + end->in_start + done, part);
		done += part;
	}
	if (peek)
		return (long)total;
	end->in_start += total;
	end->in_length -= total;
	/* As if the rest had arrived after this read: with EPOLLET, a program may take a short read
	 * for the end (epoll(7)). */
	if (is_short)
		end_changed(end);
	if (end->peer && end->peer->window_closed && total &&
	    (end->rcvbuf - end->in_length) * 2 >= end->rcvbuf)
		end_arm(end->peer, sim_time + latency());
	return (long)total;
}

long end_read(struct end *end, const struct iovec *parts, size_t count, bool peek)
{
	if (end->state == END_OPEN && end->in_length)
		return end_take(end, parts, count, peek);
	if (end->error) {
		int error = end->error;

		end->error = 0;
		return -error;
	}
	if (end->state == END_FRESH)
		return -ENOTCONN;
	return end->fin || end->shut_in || end->reset ? 0 : -EAGAIN;
}

/* ---- connections ----------------------------------------------------------------------------- */

static void keep_alive(void *arg)
{
	struct end *end = arg, *peer = end->peer;
	bool there;

	if (end->closed || end->reset || end->state != END_OPEN || !end->keepalive ||
	    !node_of(end->node)->alive)
		return;
	event_at(sim_time + end->keepidle, keep_alive, end);
	if (end->head)
		return;
	there = path_is_open(end->node, peer->node) && path_is_open(peer->node, end->node) &&
		end->black_until <= sim_time && peer->black_until <= sim_time;
	if (there && (peer->closed || peer->reset || peer->vanished)) {
		reset_send(end, peer->node);
	} else if (there) {
		end->stuck_since = 0;
	} else if (!end->stuck_since) {
		end->stuck_since = sim_time;
	} else if (sim_time - end->stuck_since >=
		   (end->user_timeout ? end->user_timeout : 4 * end->keepidle)) {
		end_break(end, ETIMEDOUT);
	}
}

void end_keep_alive(struct end *end)
{
	if (end->keepalive)
		return;
	end->keepalive = true;
	end->keepidle = 7200 * SIM_SEC;
	if (end->state == END_OPEN)
		event_at(sim_time + SIM_SEC, keep_alive, end);
}

static void connected(void *arg)
{
	struct end *end = arg;

	if (end->closed || end->state != END_CONNECTING)
		return;
	end->state = END_OPEN;
	end->stuck_since = end->rto = 0;
	end_changed(end);
	if (end->keepalive)
		event_at(sim_time + end->keepidle, keep_alive, end);
}

static struct end *listener_at(struct address at)
{
	for (int i = 0; i < end_count; i++)
		if (ends[i]->state == END_LISTENS && ends[i]->own.port == at.port &&
		    node_of(ends[i]->node)->host == at.host && node_of(ends[i]->node)->alive)
			return ends[i];
	return NULL;
}

/* The other kernel has taken the SYN: make its end, which waits to be accepted. */
static void connection_make(struct end *end, struct end *listener)
{
	struct end *other = end_new(listener->node, end->family);
	int from = node_of(end->node)->host, to = node_of(listener->node)->host;

	other->state = END_OPEN;
	other->peer = end;
	end->peer = other;
	end->initiator = true;
	end->ordinal = other->ordinal = opened[from][to]++;
	other->own.port = end->other.port;
	other->other = end->own;
	listener->waiting[listener->waiting_count++] = other;
	end_changed(listener);
	event_at(sim_time + 2 * latency(), connected, end);
}

/* A SYN is sent, again and again. */
static void send_syn(void *arg)
{
	struct end *end = arg, *listener;
	int64_t limit = end->user_timeout ? end->user_timeout : GIVE_UP_CONNECTING, last;
	int node = node_at(end->other.host);

	if (end->closed || end->state != END_CONNECTING || !node_of(end->node)->alive)
		return;
	listener = listener_at(end->other);
	if (node >= 0 && path_is_open(end->node, node) && path_is_open(node, end->node) &&
	    !(listener && listener->waiting_count >= listener->backlog)) {
		if (listener)
			connection_make(end, listener);
		else
			event_at(sim_time + 2 * latency(), reset_arrives, end);
		return;
	}
	if (!end->syns++) {
		end->stuck_since = sim_time;
		end->rto = SIM_SEC;
	}
	last = end->stuck_since + limit;
	if (sim_time >= last || node < 0 || (node_is_down(end->other.host) && sim_chance(200))) {
		end->error = sim_time >= last ? ETIMEDOUT : EHOSTUNREACH;
		end->state = END_FRESH;
		end->stuck_since = 0;
		end_changed(end);
		return;
	}
	event_at(sim_time + end->rto < last ? sim_time + end->rto : last, send_syn, end);
	end->rto *= 2;
}

void end_connect(struct end *end, struct address to)
{
	if (!end->own.port)
		end->own.port = (uint16_t)node_of(end->node)->next_port++;
	end->other = to;
	end->state = END_CONNECTING;
	event_at(sim_time + latency(), send_syn, end);
}

bool end_bind(struct end *end, uint16_t port)
{
	struct address at = { node_of(end->node)->host, port };

	if (port && listener_at(at))
		return false;
	end->own.port = port ? port : (uint16_t)node_of(end->node)->next_port++;
	return true;
}

void end_listen(struct end *end, int backlog)
{
	int most = (int)(sizeof(end->waiting) / sizeof(*end->waiting));

	end->state = END_LISTENS;
	end->backlog = backlog < most ? backlog : most;
}

struct end *end_accept(struct end *listener)
{
	struct end *end = listener->waiting[0];

	memmove(listener->waiting, listener->waiting + 1,
		(size_t)--listener->waiting_count * sizeof(end));
	if (!sim_chance(sim_options.accept_fails))
		return end;
	end->closed = true;
	end_forget(end);
	reset_send(end->peer, end->node);
	return NULL;
}

void end_shut(struct end *end, bool in, bool out)
{
	if (end->state != END_OPEN) {
		end->state = END_FRESH;
		end_changed(end);
		return;
	}
	if (in)
		end->shut_in = true;
	if (out && !end->shut_out) {
		end->shut_out = true;
		end_send(end, NULL, 0, true);
	}
	end_changed(end);
}

static void listener_close(struct end *listener)
{
	for (int i = 0; i < listener->waiting_count; i++) {
		struct end *end = listener->waiting[i];

		end->closed = true;
		end_forget(end);
		if (end->peer)
			reset_send(end->peer, listener->node);
	}
	listener->waiting_count = 0;
}

void end_close(struct end *end)
{
	if (end->closed)
		return;
	end->closed = true;
	end_forget(end);
	if (end->state == END_LISTENS)
		listener_close(end);
	if (end->state == END_OPEN && !end->reset && end->peer) {
		if (end->in_length) {
			/* Bytes that nobody has read: RST. */
			end_drop_out(end);
			reset_send(end->peer, end->node);
		} else if (!end->shut_out) {
			end_send(end, NULL, 0, true);
		}
	}
	free(end->in);
	end->in = NULL;
	end->in_length = end->in_room = end->in_start = 0;
}

/* ---- what breaks ----------------------------------------------------------------------------- */

/* The process of this end has died, and its kernel lives: FIN, or RST if bytes were not read. */
static void end_orphaned(struct end *end)
{
	struct end *peer = end->peer;

	end->vanished = true; /* what is sent to it is answered by RST */
	for (int i = 0; i < end->waiting_count; i++)
		if (end->waiting[i]->peer)
			reset_send(end->waiting[i]->peer, end->node);
	if (end->state != END_OPEN || end->reset || !peer)
		return;
	if (end->in_length) {
		end_drop_out(end);
		reset_send(peer, end->node);
		return;
	}
	if (peer->closed || !path_is_open(end->node, peer->node))
		return;
	/* Its kernel goes on delivering; here it delivers the rest at once. */
	for (struct segment *s = end->head; s; s = s->next)
		if (!s->fin && !peer->reset)
			end_append(peer, s->bytes + s->done, s->length - s->done);
	peer->fin = true;
	end_changed(peer);
}

void network_crash(int node, bool silent)
{
	for (int i = end_count - 1; i >= 0; i--) {
		struct end *end = ends[i];

		if (end->node != node)
			continue;
		if (silent)
			end->vanished = true;
		else
			end_orphaned(end);
		end->waiting_count = 0;
		if (end->state == END_CONNECTING) {
			end->state = END_FRESH;
			end->error = ENETDOWN;
		} else if (end->state == END_OPEN) {
			end->reset = true;
			end->error = ENETDOWN;
			end_drop_out(end);
		}
		end_changed(end);
	}
}

static bool is_connection(const struct end *end)
{
	return end->state == END_OPEN && !end->reset && end->peer;
}

static struct end *random_connection(void)
{
	uint64_t count = 0, pick;

	for (int i = 0; i < end_count; i++)
		count += is_connection(ends[i]);
	pick = sim_draw_chaos(count);
	for (int i = 0; i < end_count; i++)
		if (is_connection(ends[i]) && !pick--)
			return ends[i];
	return NULL;
}

bool sim_network_reset_one(void)
{
	struct end *end = random_connection();

	if (!end)
		return false;
	end_break(end, ECONNRESET);
	if (!end->peer->closed && sim_chance(700))
		end_break(end->peer, ECONNRESET);
	return true;
}

bool sim_network_black_one(int64_t ns)
{
	struct end *end = random_connection();

	/* Within a host nothing is lost. */
	if (!end || node_of(end->node)->host == node_of(end->peer->node)->host)
		return false;
	sim_trace("# end %d (node %d) loses what it sends for %.3f s", end->number, end->node,
		  (double)ns / 1e9);
	end->black_until = ns == INT64_MAX ? ns : sim_time + ns;
	if (sim_chance(500))
		end->peer->black_until = end->black_until;
	return true;
}

/* The initiator's end. NULL: there is none. */
static struct end *connection_find(int from_host, int to_host, int connection)
{
	for (int i = 0; i < end_count; i++) {
		struct end *end = ends[i];

		if (is_connection(end) && end->initiator && end->ordinal == connection &&
		    node_of(end->node)->host == from_host &&
		    node_of(end->peer->node)->host == to_host)
			return end;
	}
	return NULL;
}

void sim_network_reset(int from_host, int to_host, int connection)
{
	struct end *end = connection_find(from_host, to_host, connection);

	if (!end)
		return;
	end_break(end, ECONNRESET);
	if (!end->peer->closed)
		end_break(end->peer, ECONNRESET);
}

void sim_network_reset_there(int from_host, int to_host, int connection)
{
	struct end *end = connection_find(from_host, to_host, connection);

	if (end && !end->peer->closed)
		end_break(end->peer, ECONNRESET);
}
