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
	struct wh_file_rings *rings;
	uint32_t registered; /* of rings->buffers, the first ones */
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

static int ring_new(struct wh_file_rings *rings, struct wh_file_ring **out)
{
	struct wh_file_ring *ring = calloc(1, sizeof(*ring));
	struct io_uring_params params = { 0 };
	int error = 0;

	if (!ring)
		return -ENOMEM;
	ring->rings = rings;
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

void wh_file_rings_init(struct wh_file_rings *rings, struct wh_file_buffers *buffers)
{
	rings->buffers = buffers;
	atomic_init(&rings->buffers_error, 0);
	pthread_mutex_init(&rings->lock, NULL);
	wh_list_init(&rings->free);
	rings->error = 0;
	rings->never = false;
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
	bool never;
	int error;

	pthread_mutex_lock(&rings->lock);
	link = wh_list_take(&rings->free);
	never = rings->never;
	pthread_mutex_unlock(&rings->lock);
	if (link)
		return wh_container(link, struct wh_file_ring, link);
	if (never)
		return NULL;
	error = ring_new(rings, &ring);
	pthread_mutex_lock(&rings->lock);
	if (!rings->never)
		rings->error = error;
	/* What is short now may be there later. */
	if (error && error != -ENOMEM && error != -EMFILE && error != -ENFILE)
		rings->never = true;
	pthread_mutex_unlock(&rings->lock);
	return ring;
}

void wh_file_ring_give(struct wh_file_rings *rings, struct wh_file_ring *ring)
{
	pthread_mutex_lock(&rings->lock);
	if (ring->error) {
		rings->error = ring->error;
		rings->never = true;
	} else {
		wh_list_push(&rings->free, &ring->link);
	}
	pthread_mutex_unlock(&rings->lock);
	if (ring->error)
		ring_free(ring);
}

/* ---- registered buffers ---------------------------------------------------------------------- */

void wh_file_buffers_add(struct wh_file_buffers *buffers, void *memory, size_t length)
{
	uint32_t count = atomic_load_explicit(&buffers->count, memory_order_relaxed);

	if (count == WH_FILE_BUFFERS)
		return;
	/* Before Linux 5.12 a fork could leave the registered pages to the child, and give the
	 * parent copies at its next store. */
	madvise(memory, length, MADV_DONTFORK);
	buffers->block[count] = (struct iovec){ memory, length };
	atomic_store_explicit(&buffers->count, count + 1, memory_order_release);
}

int wh_file_rings_buffers_error(struct wh_file_rings *rings)
{
	return atomic_load(&rings->buffers_error);
}

/* The block that holds the bytes, of [first, count). Negative: none does. */
static int buffers_find(const struct wh_file_buffers *buffers, uint32_t first, uint32_t count,
			const char *memory, size_t length)
{
	for (uint32_t i = first; i < count; i++) {
		uintptr_t base = (uintptr_t)buffers->block[i].iov_base;
		uintptr_t skip = (uintptr_t)memory - base;

		if ((uintptr_t)memory >= base && skip < buffers->block[i].iov_len &&
		    length <= buffers->block[i].iov_len - skip)
			return (int)i;
	}
	return -1;
}

static int ring_register(struct wh_file_ring *ring, uint32_t count)
{
	if (ring->registered)
		syscall(SYS_io_uring_register, ring->fd, IORING_UNREGISTER_BUFFERS, NULL, 0);
	ring->registered = 0;
	if (count && syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS,
			     ring->rings->buffers->block, count))
		return -errno;
	ring->registered = count;
	return 0;
}

/* Register all blocks if the part lies in one that the ring does not have. Nothing is under way in
 * the ring. Where the kernel refuses, the ring keeps what it had: requests need no registered
 * memory. */
static void ring_update_buffers(struct wh_file_ring *ring, const struct wh_file_part *part)
{
	struct wh_file_rings *rings = ring->rings;
	uint32_t count = atomic_load_explicit(&rings->buffers->count, memory_order_acquire);
	uint32_t had = ring->registered;
	int error;

	if (atomic_load_explicit(&rings->buffers_error, memory_order_relaxed) ||
	    buffers_find(rings->buffers, had, count, part->memory, part->length) < 0)
		return;
	error = ring_register(ring, count);
	if (error) {
		atomic_store(&rings->buffers_error, error);
		ring_register(ring, had);
	}
}

/* ---- moving ---------------------------------------------------------------------------------- */

static void ring_put(struct wh_file_ring *ring, uint32_t op, const struct wh_file_part *part,
		     uint32_t index)
{
	uint32_t tail = *ring->submit_tail, slot = tail & *ring->submit_mask;
	int buffer =
		buffers_find(ring->rings->buffers, 0, ring->registered, part->memory, part->length);
	uint8_t reads = buffer < 0 ? IORING_OP_READ : IORING_OP_READ_FIXED;
	uint8_t writes = buffer < 0 ? IORING_OP_WRITE : IORING_OP_WRITE_FIXED;

	ring->submissions[slot] = (struct io_uring_sqe){
		.opcode = op == WH_READ ? reads : writes,
		.buf_index = (uint16_t)(buffer < 0 ? 0 : buffer),
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
	/* The parts of one call are all of one slot, or of memory that is not registered. */
	ring_update_buffers(ring, &parts[0]);
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
