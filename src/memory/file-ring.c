/* SPDX-License-Identifier: Apache-2.0 */
/* memory/file-ring.c: many reads and writes of files at once, by io_uring */
#include "memory/file-ring.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <wherry/transfer.h>

/* The rings that are shared with the kernel. It writes the head of the submissions and the tail of
 * the completions. */
struct wh_file_ring {
	struct wh_list link; /* rings.free */
	int fd;
	int error; /* negative errno: the kernel takes nothing from it */
	uint32_t *submit_tail, *submit_mask, *submit_array;
	uint32_t *complete_head, *complete_tail, *complete_mask;
	struct io_uring_cqe *completions;
	struct io_uring_sqe *submissions;
	void *queues; /* both in one mapping */
	size_t queues_length, submissions_length;
};

/* ---- making and freeing ---------------------------------------------------------------------- */

static void ring_free(struct wh_file_ring *ring)
{
	if (ring->submissions)
		munmap(ring->submissions, ring->submissions_length);
	if (ring->queues)
		munmap(ring->queues, ring->queues_length);
	if (ring->fd >= 0)
		close(ring->fd);
	free(ring);
}

static void *ring_map(const struct wh_file_ring *ring, size_t length, off_t what)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd,
			what);

	if (at == MAP_FAILED)
		return NULL;
	/* A forked child must not submit for its parent. */
	madvise(at, length, MADV_DONTFORK);
	return at;
}

static int ring_map_all(struct wh_file_ring *ring, const struct io_uring_params *params)
{
	size_t submit = params->sq_off.array + params->sq_entries * sizeof(uint32_t);
	size_t complete = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
	char *base;

	ring->queues_length = submit > complete ? submit : complete;
	ring->queues = ring_map(ring, ring->queues_length, IORING_OFF_SQ_RING);
	ring->submissions_length = params->sq_entries * sizeof(struct io_uring_sqe);
	ring->submissions = ring_map(ring, ring->submissions_length, IORING_OFF_SQES);
	if (!ring->queues || !ring->submissions)
		return -ENOMEM;
	base = ring->queues;
	ring->submit_tail = (uint32_t *)(void *)(base + params->sq_off.tail);
	ring->submit_mask = (uint32_t *)(void *)(base + params->sq_off.ring_mask);
	ring->submit_array = (uint32_t *)(void *)(base + params->sq_off.array);
	ring->complete_head = (uint32_t *)(void *)(base + params->cq_off.head);
	ring->complete_tail = (uint32_t *)(void *)(base + params->cq_off.tail);
	ring->complete_mask = (uint32_t *)(void *)(base + params->cq_off.ring_mask);
	ring->completions = (struct io_uring_cqe *)(void *)(base + params->cq_off.cqes);
	return 0;
}

/* Does the kernel know reads and writes without a list of buffers (from Linux 5.6 on)? */
static bool ring_can_move(const struct wh_file_ring *ring)
{
	size_t size = sizeof(struct io_uring_probe) + 64 * sizeof(struct io_uring_probe_op);
	struct io_uring_probe *probe = calloc(1, size);
	bool can;

	if (!probe)
		return false;
	can = !syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_PROBE, probe, 64) &&
	      probe->last_op >= IORING_OP_WRITE &&
	      probe->ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED &&
	      probe->ops[IORING_OP_WRITE].flags & IO_URING_OP_SUPPORTED;
	free(probe);
	return can;
}

static int ring_new(struct wh_file_ring **out)
{
	struct wh_file_ring *ring = calloc(1, sizeof(*ring));
	struct io_uring_params params = { 0 };
	int error = 0;

	if (!ring)
		return -ENOMEM;
	ring->fd = (int)syscall(SYS_io_uring_setup, WH_FILE_RING_DEPTH, &params);
	if (ring->fd < 0)
		error = -errno;
	else if (!(params.features & IORING_FEAT_SINGLE_MMAP) || !ring_can_move(ring))
		error = -ENOSYS;
	else
		error = ring_map_all(ring, &params);
	if (error)
		ring_free(ring);
	else
		*out = ring;
	return error;
}

void wh_file_rings_init(struct wh_file_rings *rings)
{
	pthread_mutex_init(&rings->lock, NULL);
	wh_list_init(&rings->free);
	rings->error = 0;
}

void wh_file_rings_destroy(struct wh_file_rings *rings)
{
	struct wh_list *link;

	while ((link = wh_list_take(&rings->free)))
		ring_free(wh_container(link, struct wh_file_ring, link));
	pthread_mutex_destroy(&rings->lock);
}

int wh_file_rings_error(struct wh_file_rings *rings)
{
	int error;

	pthread_mutex_lock(&rings->lock);
	error = rings->error;
	pthread_mutex_unlock(&rings->lock);
	return error;
}

struct wh_file_ring *wh_file_ring_take(struct wh_file_rings *rings)
{
	struct wh_file_ring *ring = NULL;
	struct wh_list *link;
	int error;

	pthread_mutex_lock(&rings->lock);
	link = wh_list_take(&rings->free);
	error = rings->error;
	pthread_mutex_unlock(&rings->lock);
	if (link)
		return wh_container(link, struct wh_file_ring, link);
	if (error)
		return NULL;
	error = ring_new(&ring);
	/* What is short now may be there later. */
	if (error && error != -ENOMEM && error != -EMFILE && error != -ENFILE) {
		pthread_mutex_lock(&rings->lock);
		rings->error = error;
		pthread_mutex_unlock(&rings->lock);
	}
	return ring;
}

void wh_file_ring_give(struct wh_file_rings *rings, struct wh_file_ring *ring)
{
	pthread_mutex_lock(&rings->lock);
	if (ring->error)
		rings->error = ring->error;
	else
		wh_list_push(&rings->free, &ring->link);
	pthread_mutex_unlock(&rings->lock);
	if (ring->error)
		ring_free(ring);
}

/* ---- moving ---------------------------------------------------------------------------------- */

static void ring_put(struct wh_file_ring *ring, uint32_t op, const struct wh_file_part *part,
		     uint32_t index)
{
	uint32_t tail = *ring->submit_tail, slot = tail & *ring->submit_mask;

	ring->submissions[slot] = (struct io_uring_sqe){
		.opcode = op == WH_READ ? IORING_OP_READ : IORING_OP_WRITE,
		.fd = part->fd,
		.off = part->at,
		.addr = (uint64_t)(uintptr_t)part->memory,
		.len = part->length,
		.user_data = index,
	};
	ring->submit_array[slot] = slot;
	__atomic_store_n(ring->submit_tail, tail + 1, __ATOMIC_RELEASE);
}

/* Take the completions that are there. Returns how many. */
static uint32_t ring_take_completions(struct wh_file_ring *ring, struct wh_file_part *parts)
{
	uint32_t head = *ring->complete_head, count = 0;

	while (head != __atomic_load_n(ring->complete_tail, __ATOMIC_ACQUIRE)) {
		const struct io_uring_cqe *done = &ring->completions[head & *ring->complete_mask];

		parts[done->user_data].done = done->res;
		__atomic_store_n(ring->complete_head, ++head, __ATOMIC_RELEASE);
		count++;
	}
	return count;
}

void wh_file_ring_move(struct wh_file_ring *ring, uint32_t op, struct wh_file_part *parts,
		       uint32_t count)
{
	/* put: into the ring; entered: of them those that the kernel has taken */
	uint32_t put = 0, entered = 0, done = 0;
	long got;

	for (uint32_t i = 0; i < count; i++)
		parts[i].done = 0;
	/* After an error that stays, only what the kernel has taken already is waited for. */
	while (done < (ring->error ? entered : count)) {
		while (!ring->error && put < count && put - done < WH_FILE_RING_DEPTH) {
			ring_put(ring, op, &parts[put], put);
			put++;
		}
		got = syscall(SYS_io_uring_enter, ring->fd, ring->error ? 0 : put - entered, 1,
			      IORING_ENTER_GETEVENTS, NULL, 0);
		if (got > 0)
			entered += (uint32_t)got;
		/* EINTR, and EAGAIN or EBUSY where the kernel is short of something for a moment:
		 * what has been put stays, and is entered by the next call. */
		else if (got < 0 && errno != EINTR) {
			if (errno != EAGAIN && errno != EBUSY)
				ring->error = -errno;
			sched_yield();
		}
		done += ring_take_completions(ring, parts);
	}
}
