/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of simulated processes: sockets, eventfd, timerfd, epoll; and poll(). */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/timerfd.h>

#include "calls.h"
#include "world.h"

#define DISARMED (1u << 27) /* by EPOLLONESHOT */
#define EVENTS_MOST 512

/* What an epoll descriptor watches. */
struct watch {
	struct descriptor *descriptor;
	uint32_t events;
	uint32_t edges; /* of the descriptor, when it was last reported */
	epoll_data_t data;
};

static struct descriptor **table;
static int table_room, table_free; /* no free entry below */

struct descriptor *descriptor_new(const struct descriptor_kind *kind)
{
	struct descriptor *descriptor = calloc(1, sizeof(*descriptor));
	int i = table_free;

	while (i < table_room && table[i])
		i++;
	if (i == table_room) {
		table = sim_grow(table, (size_t)table_room + 64, sizeof(*table));
		memset(table + table_room, 0, 64 * sizeof(*table));
		table_room += 64;
	}
	table_free = i + 1;
	table[i] = descriptor;
	descriptor->kind = kind;
	descriptor->fd = DESCRIPTOR_FIRST + i;
	descriptor->node = node_self();
	if (descriptor->node >= 0)
		node_of(descriptor->node)->descriptors++;
	return descriptor;
}

struct descriptor *descriptor_of(int fd)
{
	return fd < DESCRIPTOR_FIRST || fd - DESCRIPTOR_FIRST >= table_room ?
		       NULL :
		       table[fd - DESCRIPTOR_FIRST];
}

void descriptor_changed(struct descriptor *descriptor)
{
	descriptor->edges++;
	node_changed(descriptor->node);
}

static void watch_remove(struct descriptor *epoll, int at)
{
	epoll->watches[at].descriptor->watched--;
	epoll->watches[at] = epoll->watches[--epoll->watch_count];
}

static void descriptor_unwatch(struct descriptor *descriptor)
{
	for (int i = 0; i < table_room && descriptor->watched; i++) {
		struct descriptor *epoll = table[i];

		if (!epoll || epoll->kind != &kind_epoll)
			continue;
		for (int j = epoll->watch_count - 1; j >= 0; j--)
			if (epoll->watches[j].descriptor == descriptor)
				watch_remove(epoll, j);
	}
}

void descriptor_close(struct descriptor *descriptor)
{
	int at = descriptor->fd - DESCRIPTOR_FIRST;

	descriptor_unwatch(descriptor);
	if (descriptor->kind->close)
		descriptor->kind->close(descriptor);
	if (descriptor->node >= 0)
		node_of(descriptor->node)->descriptors--;
	table[at] = NULL;
	table_free = at < table_free ? at : table_free;
	free(descriptor);
}

static void descriptor_share(struct descriptor *to, const struct descriptor *from)
{
	if (from->local)
		local_hold(from->local);
	else if (from->shared)
		shared_hold(from->shared);
	else if (!from->file)
		sim_die("a copy of a descriptor of a %s", from->kind->name);
	to->kind = from->kind;
	to->local = from->local;
	to->shared = from->shared;
	to->file = from->file;
	to->flags = from->flags;
}

struct descriptor *descriptor_copy(const struct descriptor *from)
{
	struct descriptor *copy = descriptor_new(from->kind);

	descriptor_share(copy, from);
	return copy;
}

void descriptor_replace(struct descriptor *to, const struct descriptor *from)
{
	descriptor_unwatch(to);
	if (to->kind->close)
		to->kind->close(to);
	descriptor_share(to, from);
}

static uint32_t edges_of(const struct descriptor *descriptor)
{
	return descriptor->end   ? descriptor->end->edges :
	       descriptor->local ? local_edges(descriptor->local) :
				   descriptor->edges;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

static uint32_t stream_events(const struct descriptor *descriptor)
{
	return end_events(descriptor->end);
}

static long stream_read(struct descriptor *descriptor, void *bytes, size_t length)
{
	struct iovec part = { bytes, length };

	return end_read(descriptor->end, &part, 1, false);
}

static long stream_write(struct descriptor *descriptor, const void *bytes, size_t length)
{
	struct iovec part = { (void *)bytes, length };

	return end_write(descriptor->end, &part, 1);
}

static void stream_close(struct descriptor *descriptor)
{
	end_close(descriptor->end);
}

const struct descriptor_kind kind_stream = {
	.name = "socket",
	.events = stream_events,
	.read = stream_read,
	.write = stream_write,
	.close = stream_close,
};

static uint32_t event_events(const struct descriptor *descriptor)
{
	return (descriptor->count ? EPOLLIN : 0) | EPOLLOUT;
}

static long event_read(struct descriptor *descriptor, void *bytes, size_t length)
{
	if (length < sizeof(descriptor->count))
		return -EINVAL;
	if (!descriptor->count)
		return -EAGAIN;
	memcpy(bytes, &descriptor->count, sizeof(descriptor->count));
	descriptor->count = 0;
	return sizeof(descriptor->count);
}

static long event_write(struct descriptor *descriptor, const void *bytes, size_t length)
{
	uint64_t add;

	if (length < sizeof(add))
		return -EINVAL;
	memcpy(&add, bytes, sizeof(add));
	descriptor->count += add;
	descriptor_changed(descriptor);
	return sizeof(add);
}

const struct descriptor_kind kind_event = {
	.name = "eventfd",
	.events = event_events,
	.read = event_read,
	.write = event_write,
};

static uint32_t timer_events(const struct descriptor *descriptor)
{
	return descriptor->due && descriptor->due <= sim_time ? EPOLLIN : 0;
}

static long timer_read(struct descriptor *descriptor, void *bytes, size_t length)
{
	uint64_t one = 1;

	if (length < sizeof(one))
		return -EINVAL;
	if (!timer_events(descriptor))
		return -EAGAIN;
	memcpy(bytes, &one, sizeof(one));
	descriptor->due = 0;
	return sizeof(one);
}

const struct descriptor_kind kind_timer = {
	.name = "timerfd",
	.events = timer_events,
	.read = timer_read,
};

static bool watch_is_ready(const struct watch *watch, uint32_t *events)
{
	if (watch->events & DISARMED)
		return false;
	*events = watch->descriptor->kind->events(watch->descriptor) &
		  ((watch->events & 0xffff) | EPOLLERR | EPOLLHUP);
	return *events && !(watch->events & EPOLLET && watch->edges == edges_of(watch->descriptor));
}

static uint32_t epoll_events(const struct descriptor *descriptor)
{
	uint32_t events;

	for (int i = 0; i < descriptor->watch_count; i++)
		if (watch_is_ready(&descriptor->watches[i], &events))
			return EPOLLIN;
	return 0;
}

static void epoll_close(struct descriptor *descriptor)
{
	while (descriptor->watch_count)
		watch_remove(descriptor, descriptor->watch_count - 1);
	free(descriptor->watches);
}

const struct descriptor_kind kind_epoll = {
	.name = "epoll",
	.events = epoll_events,
	.close = epoll_close,
};

/* ---- making, reading, writing, closing ------------------------------------------------------- */

static int make(const char *call, const struct descriptor_kind *kind, uint64_t count)
{
	struct descriptor *descriptor;

	call_point(call, 0);
	if (node_lacks_descriptors())
		return (int)call_failed(call, -1, EMFILE);
	descriptor = descriptor_new(kind);
	descriptor->count = count;
	return (int)call_result(call, -1, descriptor->fd);
}

int sim_eventfd(unsigned count, int flags)
{
	(void)flags;
	return make("eventfd", &kind_event, count);
}

int sim_timerfd_create(int clock, int flags)
{
	(void)clock;
	(void)flags;
	return make("timerfd_create", &kind_timer, 0);
}

int sim_epoll_create1(int flags)
{
	(void)flags;
	return make("epoll_create1", &kind_epoll, 0);
}

ssize_t sim_read(int fd, void *bytes, size_t length)
{
	struct descriptor *descriptor = descriptor_of(fd);

	if (!descriptor)
		return descriptor_is_real(fd) ? read(fd, bytes, length) :
						call_failed("read", fd, EBADF);
	call_point("read", (uint64_t)fd);
	return call_done("read", fd,
			 descriptor->kind->read ?
				 descriptor->kind->read(descriptor, bytes, length) :
				 -EINVAL);
}

ssize_t sim_write(int fd, const void *bytes, size_t length)
{
	struct descriptor *descriptor = descriptor_of(fd);

	if (!descriptor)
		return descriptor_is_real(fd) ? write(fd, bytes, length) :
						call_failed("write", fd, EBADF);
	call_point("write", (uint64_t)fd);
	return call_done("write", fd,
			 descriptor->kind->write ?
				 descriptor->kind->write(descriptor, bytes, length) :
				 -EINVAL);
}

int sim_close(int fd)
{
	struct descriptor *descriptor = descriptor_of(fd);

	if (!descriptor) {
		if (!descriptor_is_real(fd))
			sim_fail("descriptor", "close() of %d, which is not open", fd);
		return close(fd);
	}
	call_point("close", (uint64_t)fd);
	descriptor_close(descriptor);
	return (int)call_result("close", fd, 0);
}

static void timer_due(void *arg)
{
	node_changed((int)(intptr_t)arg);
}

int sim_timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old)
{
	struct descriptor *descriptor = descriptor_of(fd);

	(void)old;
	call_point("timerfd_settime", (uint64_t)fd);
	if (!descriptor || descriptor->kind != &kind_timer)
		return (int)call_failed("timerfd_settime", fd, EBADF);
	descriptor->due = value->it_value.tv_sec * SIM_SEC + value->it_value.tv_nsec;
	if (descriptor->due && !(flags & TFD_TIMER_ABSTIME))
		descriptor->due += sim_time;
	if (descriptor->due)
		event_at(descriptor->due > sim_time ? descriptor->due : sim_time, timer_due,
			 (void *)(intptr_t)descriptor->node);
	descriptor_changed(descriptor);
	return 0;
}

/* ---- epoll ----------------------------------------------------------------------------------- */

static struct watch *watch_find(struct descriptor *epoll, const struct descriptor *descriptor)
{
	for (int i = 0; i < epoll->watch_count; i++)
		if (epoll->watches[i].descriptor == descriptor)
			return &epoll->watches[i];
	return NULL;
}

static struct watch *watch_add(struct descriptor *epoll, struct descriptor *descriptor)
{
	if (epoll->watch_count == epoll->watch_room) {
		epoll->watch_room += 16;
		epoll->watches =
			sim_grow(epoll->watches, epoll->watch_room, sizeof(*epoll->watches));
	}
	descriptor->watched++;
	return &epoll->watches[epoll->watch_count++];
}

int sim_epoll_ctl(int fd, int op, int target, struct epoll_event *event)
{
	struct descriptor *epoll = descriptor_of(fd), *descriptor = descriptor_of(target);
	struct watch *watch;

	call_point("epoll_ctl", (uint64_t)target);
	if (!epoll || !descriptor)
		return (int)call_failed("epoll_ctl", target, EBADF);
	watch = watch_find(epoll, descriptor);
	if (op == EPOLL_CTL_ADD) {
		if (watch)
			return (int)call_failed("epoll_ctl", target, EEXIST);
		if (sim_chance(sim_options.epoll_fails))
			return (int)call_failed("epoll_ctl", target, ENOSPC);
		watch = watch_add(epoll, descriptor);
	} else if (!watch) {
		return (int)call_failed("epoll_ctl", target, ENOENT);
	}
	if (op == EPOLL_CTL_DEL) {
		watch_remove(epoll, (int)(watch - epoll->watches));
		return (int)call_result("epoll_ctl", target, 0);
	}
	*watch = (struct watch){ .descriptor = descriptor,
				 .events = event->events,
				 .data = event->data,
				 .edges = edges_of(descriptor) - 1 };
	node_changed(epoll->node);
	return (int)call_result("epoll_ctl", target, 0);
}

static bool epoll_is_ready(const struct fiber *fiber)
{
	return epoll_events(fiber->on) != 0;
}

static void shuffle(int *order, int count)
{
	for (int i = count - 1; i > 0; i--) {
		int j = (int)sim_draw_world((uint64_t)i + 1), other = order[i];

		order[i] = order[j];
		order[j] = other;
	}
}

int sim_epoll_wait(int fd, struct epoll_event *out, int max, int timeout)
{
	struct descriptor *epoll = descriptor_of(fd);
	int order[EVENTS_MOST], count = 0;
	uint32_t events;

	call_point("epoll_wait", (uint64_t)fd);
	if (!epoll || epoll->kind != &kind_epoll)
		return (int)call_failed("epoll_wait", fd, EBADF);
	if (timeout && !epoll_events(epoll))
		fiber_poll(epoll_is_ready, epoll, 0,
			   timeout < 0 ? INT64_MAX : sim_time + timeout * SIM_MS, "epoll_wait");
	for (int i = 0; i < epoll->watch_count && count < EVENTS_MOST; i++)
		if (watch_is_ready(&epoll->watches[i], &events))
			order[count++] = i;
	shuffle(order, count);
	count = count < max ? count : max;
	for (int i = 0; i < count; i++) {
		struct watch *watch = &epoll->watches[order[i]];

		watch_is_ready(watch, &events);
		out[i] = (struct epoll_event){ .events = events, .data = watch->data };
		watch->edges = edges_of(watch->descriptor);
		if (watch->events & EPOLLONESHOT)
			watch->events = EPOLLONESHOT | DISARMED;
		hash_word((uint64_t)watch->descriptor->fd << 32 | events);
	}
	call_result("epoll_wait", fd, count);
	if (count)
		sim_current->fruitless = 0, sim_current->spun = false;
	else if (!timeout)
		call_fruitless();
	return count;
}

/* ---- poll ------------------------------------------------------------------------------------ */

static short poll_events(const struct pollfd *look)
{
	const struct descriptor *descriptor = descriptor_of(look->fd);

	if (!descriptor)
		return look->fd >= 0 ? POLLNVAL : 0;
	return (short)(descriptor->kind->events(descriptor) &
		       ((uint32_t)look->events | POLLERR | POLLHUP));
}

static bool poll_is_ready(const struct fiber *fiber)
{
	const struct pollfd *look = fiber->on;

	for (int64_t i = 0; i < fiber->value; i++)
		if (poll_events(&look[i]))
			return true;
	return false;
}

static int poll_until(struct pollfd *look, nfds_t count, int64_t deadline)
{
	struct fiber probe = { .on = look, .value = (int64_t)count };
	int ready = 0;

	for (nfds_t i = 0; i < count; i++)
		if (descriptor_is_real(look[i].fd))
			sim_die("poll() of the real descriptor %d", look[i].fd);
	call_point("poll", count);
	if (deadline && !poll_is_ready(&probe)) {
		bool interrupted = sim_chance(sim_options.eintr);

		fiber_poll(poll_is_ready, look, (int64_t)count,
			   interrupted ? sim_time + (int64_t)sim_draw_world(SIM_MS) : deadline,
			   "poll");
		if (interrupted)
			return (int)call_failed("poll", -1, EINTR);
	}
	for (nfds_t i = 0; i < count; i++) {
		look[i].revents = poll_events(&look[i]);
		ready += look[i].revents != 0;
	}
	return (int)call_result("poll", -1, ready);
}

int sim_poll(struct pollfd *look, nfds_t count, int timeout)
{
	return poll_until(look, count,
			  !timeout    ? 0 :
			  timeout < 0 ? INT64_MAX :
					sim_time + timeout * SIM_MS);
}

int sim_ppoll(struct pollfd *look, nfds_t count, const struct timespec *timeout,
	      const sigset_t *mask)
{
	int64_t ns = timeout ? timeout->tv_sec * SIM_SEC + timeout->tv_nsec : 0;

	(void)mask;
	return poll_until(look, count, !timeout ? INT64_MAX : ns ? sim_time + ns : 0);
}
