/* SPDX-License-Identifier: Apache-2.0 */
/* Stream operations on memory: copies, fills, waiting for values and writing them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fake.h"

/* Copies from pageable memory up to this size do not wait for the device. */
#define STAGED ((size_t)64 << 10)

/* ---- pageable memory of the host ------------------------------------------------------------- */

/* Without process_vm_readv (under qemu-user): a pipe reports a bad address just as well. */
static bool pageable_copy_by_pipe(void *inside, uint64_t outside, size_t length, bool write)
{
	char *there = (char *)(uintptr_t)outside, *from = write ? inside : there;
	char *to = write ? there : inside;
	bool good = true;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return false;
	for (size_t piece, done = 0; good && done < length; done += piece) {
		piece = length - done < 4096 ? length - done : 4096; /* what a pipe has room for */
		good = syscall(SYS_write, ends[1], from + done, piece) == (long)piece &&
		       syscall(SYS_read, ends[0], to + done, piece) == (long)piece;
	}
	close(ends[0]);
	close(ends[1]);
	return good;
}

/* Copy through the kernel, which returns an error where a load or a store would fault. Calls
 * syscall(), which the thread sanitizer does not intercept: another process may have announced that
 * the bytes are there, and the sanitizer does not see that ordering. */
static bool pageable_copy(void *inside, uint64_t outside, size_t length, bool write)
{
	while (length) {
		struct iovec here = { inside, length };
		struct iovec there = { (void *)(uintptr_t)outside, length };
		ssize_t n = syscall(write ? SYS_process_vm_writev : SYS_process_vm_readv, getpid(),
				    &here, 1UL, &there, 1UL, 0UL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == ENOSYS)
			return pageable_copy_by_pipe(inside, outside, length, write);
		if (n <= 0)
			return false;
		inside = (char *)inside + n;
		outside += (uint64_t)n;
		length -= (size_t)n;
	}
	return true;
}

/* ---- one end of a copy ----------------------------------------------------------------------- */

struct end {
	uint64_t address;
	bool pageable;
	bool device; /* in a device's memory */
	bool sync; /* SYNC_MEMOPS */
};

/* Classify [address, address+length). An error if the context may not copy to or from it. */
static int end_look_up(const struct fake_context *context, uint64_t address, size_t length,
		       bool write, struct end *out)
{
	uint64_t at = address;
	int error = FAKE_OK;

	*out = (struct end){ .address = address };
	if (address + length < address)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_map_lock);
	out->pageable = !fake_range_find(address) && !fake_reservation_find(address);
	while (!out->pageable && !error && at < address + length) {
		size_t piece = address + length - at;
		const struct fake_range *range = fake_range_find(at);

		if (!fake_translate(context, FAKE_BY_COPY, at, &piece, write)) {
			error = FAKE_INVALID_VALUE;
		} else if (range->device->lost) {
			error = range->device->lost;
		} else {
			out->device |= range->memory != NULL;
			out->sync |= range->sync || range->kind == FAKE_MANAGED;
			at += piece;
		}
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

/* ---- copying --------------------------------------------------------------------------------- */

struct copy_op {
	struct fake_op op;
	struct end to, from;
	size_t length;
	char *staged; /* the bytes of a pageable source, copied at submission */
};

/* Copy a piece that is contiguous on both sides and return its length; 0: failed. Under
 * fake_map_lock. */
static size_t copy_piece(const struct copy_op *copy, size_t done)
{
	size_t length = copy->length - done, *n = &length;
	const struct fake_context *context = copy->op.context;
	char *to = NULL, *from;

	from = copy->from.pageable ?
		       copy->staged + done :
		       fake_translate(context, FAKE_BY_COPY, copy->from.address + done, n, false);
	if (!from)
		return 0;
	if (copy->to.pageable)
		return pageable_copy(from, copy->to.address + done, length, true) ? length : 0;
	to = fake_translate(context, FAKE_BY_COPY, copy->to.address + done, n, true);
	if (!to)
		return 0;
	memmove(to, from, length);
	return length;
}

static int do_copy(struct fake_op *op)
{
	struct copy_op *copy = (struct copy_op *)op;
	size_t done = 0, piece = 1;

	fake_take_time(false);
	pthread_rwlock_rdlock(&fake_map_lock);
	while (done < copy->length && piece) {
		piece = copy_piece(copy, done);
		done += piece;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return done < copy->length ? FAKE_ILLEGAL_ADDRESS : 0;
}

static void end_copy(struct fake_op *op)
{
	free(((struct copy_op *)op)->staged);
}

/* Does the copy return only when it is done? */
static bool copy_waits(const struct copy_op *copy, bool async)
{
	if (copy->to.pageable)
		return true;
	if (async)
		return false;
	if (copy->from.pageable && copy->length > STAGED)
		return true;
	if (copy->to.sync || copy->from.sync)
		return true;
	return !copy->to.device || !(copy->from.device || copy->from.pageable);
}

enum { FROM_DEVICE = 1, TO_DEVICE = 2 };

/* `sides`: the sides whose addresses CUDA has to know. */
static int copy_with(uint64_t to, uint64_t from, size_t length, void *stream, unsigned sides,
		     bool async)
{
	struct fake_context *context;
	struct copy_op *copy;
	int error = fake_stream_context(stream, &context);

	if (error || !length)
		return error;
	copy = calloc(1, sizeof(*copy));
	if (!copy)
		return FAKE_OUT_OF_MEMORY;
	copy->op.run = do_copy;
	copy->op.end = end_copy;
	copy->length = length;
	error = end_look_up(context, to, length, true, &copy->to);
	if (!error)
		error = end_look_up(context, from, length, false, &copy->from);
	if (!error && ((sides & TO_DEVICE && copy->to.pageable) ||
		       (sides & FROM_DEVICE && copy->from.pageable)))
		error = FAKE_INVALID_VALUE;
	if (!error && copy->from.pageable) {
		copy->staged = malloc(length);
		if (!copy->staged)
			error = FAKE_OUT_OF_MEMORY;
		else if (!pageable_copy(copy->staged, from, length, false))
			error = FAKE_INVALID_VALUE;
	}
	if (error) {
		end_copy(&copy->op);
		free(copy);
		return error;
	}
	return fake_submit(stream, &copy->op, copy_waits(copy, async));
}

FAKE_API int cuMemcpy(uint64_t to, uint64_t from, size_t length)
{
	FAKE_ENTER();
	return copy_with(to, from, length, NULL, 0, false);
}

FAKE_API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t length)
{
	FAKE_ENTER();
	return copy_with(to, (uintptr_t)from, length, NULL, TO_DEVICE, false);
}

FAKE_API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t length)
{
	FAKE_ENTER();
	return copy_with((uintptr_t)to, from, length, NULL, FROM_DEVICE, false);
}

FAKE_API int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t length)
{
	FAKE_ENTER();
	return copy_with(to, from, length, NULL, TO_DEVICE | FROM_DEVICE, false);
}

FAKE_API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t length, void *stream)
{
	FAKE_ENTER();
	return copy_with(to, from, length, stream, 0, true);
}

FAKE_API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t length, void *stream)
{
	FAKE_ENTER();
	return copy_with(to, (uintptr_t)from, length, stream, TO_DEVICE, true);
}

FAKE_API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t length, void *stream)
{
	FAKE_ENTER();
	return copy_with((uintptr_t)to, from, length, stream, FROM_DEVICE, true);
}

FAKE_API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t length, void *stream)
{
	FAKE_ENTER();
	return copy_with(to, from, length, stream, TO_DEVICE | FROM_DEVICE, true);
}

static int copy_peer(uint64_t to, struct fake_context *to_context, uint64_t from,
		     struct fake_context *from_context, size_t length, void *stream, bool async)
{
	int error;

	if (!to_context || !from_context || !fake_context_known(to_context) ||
	    !fake_context_known(from_context))
		return FAKE_INVALID_CONTEXT;
	error = fake_health(to_context);
	if (!error)
		error = fake_health(from_context);
	if (error)
		return error;
	return copy_with(to, from, length, stream, TO_DEVICE | FROM_DEVICE, async);
}

FAKE_API int cuMemcpyPeer(uint64_t to, struct fake_context *to_context, uint64_t from,
			  struct fake_context *from_context, size_t length)
{
	FAKE_ENTER();
	return copy_peer(to, to_context, from, from_context, length, NULL, false);
}

FAKE_API int cuMemcpyPeerAsync(uint64_t to, struct fake_context *to_context, uint64_t from,
			       struct fake_context *from_context, size_t length, void *stream)
{
	FAKE_ENTER();
	return copy_peer(to, to_context, from, from_context, length, stream, true);
}

/* ---- many copies at once --------------------------------------------------------------------- */

static int copy_batch(const uint64_t *to, const uint64_t *from, const size_t *lengths, size_t count,
		      const struct fake_copy_attributes *attributes, const size_t *starts,
		      size_t attribute_count, size_t *failed, void *stream)
{
	int error = FAKE_OK;

	if (failed)
		*failed = SIZE_MAX;
	/* The legacy default stream is not supported. */
	if (!to || !from || !lengths || !count || !attributes || !starts || !attribute_count ||
	    attribute_count > count || starts[0] != 0 || !stream || stream == (void *)1)
		return FAKE_INVALID_VALUE;
	for (size_t i = 0; i < attribute_count; i++)
		if (attributes[i].order < 1 || attributes[i].order > 3 || attributes[i].flags > 1 ||
		    (i && starts[i] <= starts[i - 1]) || starts[i] >= count)
			return FAKE_INVALID_VALUE;
	for (size_t i = 0; i < count && !error; i++) {
		error = lengths[i] ? copy_with(to[i], from[i], lengths[i], stream, 0, true) :
				     FAKE_INVALID_VALUE;
		if (error && failed)
			*failed = i;
	}
	return error;
}

FAKE_API int cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *lengths, size_t count,
				struct fake_copy_attributes *attributes, size_t *starts,
				size_t attribute_count, size_t *failed, void *stream)
{
	FAKE_ENTER();
	return copy_batch(to, from, lengths, count, attributes, starts, attribute_count, failed,
			  stream);
}

/* Since CUDA 13.0 without the index of the copy that failed. */
FAKE_API int cuMemcpyBatchAsync_v2(uint64_t *to, uint64_t *from, size_t *lengths, size_t count,
				   struct fake_copy_attributes *attributes, size_t *starts,
				   size_t attribute_count, void *stream)
{
	FAKE_ENTER();
	return copy_batch(to, from, lengths, count, attributes, starts, attribute_count, NULL,
			  stream);
}

/* ---- filling --------------------------------------------------------------------------------- */

struct fill_op {
	struct fake_op op;
	uint64_t address;
	size_t length;
	unsigned char value;
};

static int do_fill(struct fake_op *op)
{
	struct fill_op *fill = (struct fill_op *)op;
	size_t done = 0;

	pthread_rwlock_rdlock(&fake_map_lock);
	while (done < fill->length) {
		size_t piece = fill->length - done;
		char *at = fake_translate(op->context, FAKE_BY_COPY, fill->address + done, &piece,
					  true);

		if (!at)
			break;
		memset(at, fill->value, piece);
		done += piece;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return done < fill->length ? FAKE_ILLEGAL_ADDRESS : 0;
}

static int fill_with(uint64_t address, unsigned char value, size_t length, void *stream, bool async)
{
	struct fake_context *context;
	struct fill_op *fill;
	struct end end;
	int error = fake_stream_context(stream, &context);

	if (error || !length)
		return error;
	error = end_look_up(context, address, length, true, &end);
	if (error || end.pageable)
		return error ? error : FAKE_INVALID_VALUE;
	fill = calloc(1, sizeof(*fill));
	if (!fill)
		return FAKE_OUT_OF_MEMORY;
	fill->op.run = do_fill;
	fill->address = address;
	fill->length = length;
	fill->value = value;
	return fake_submit(stream, &fill->op, !async && (!end.device || end.sync));
}

FAKE_API int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t length)
{
	FAKE_ENTER();
	return fill_with(address, value, length, NULL, false);
}

FAKE_API int cuMemsetD8Async(uint64_t address, unsigned char value, size_t length, void *stream)
{
	FAKE_ENTER();
	return fill_with(address, value, length, stream, true);
}

/* ---- values ---------------------------------------------------------------------------------- */

struct value_op {
	struct fake_op op;
	uint64_t address;
	uint32_t value;
	unsigned flags;
};

static int load_value(const struct value_op *value, uint32_t *out)
{
	size_t length = sizeof(*out);
	_Atomic uint32_t *at;

	pthread_rwlock_rdlock(&fake_map_lock);
	at = (_Atomic uint32_t *)(void *)fake_translate(value->op.context, FAKE_BY_COPY,
							value->address, &length, false);
	if (at)
		*out = *at;
	pthread_rwlock_unlock(&fake_map_lock);
	return at ? 0 : FAKE_ILLEGAL_ADDRESS;
}

static bool value_satisfied(uint32_t is, const struct value_op *value)
{
	switch (value->flags & 3) {
	case 0: /* GEQ, modulo 2^32 */
		return (int32_t)(is - value->value) >= 0;
	case 1: /* EQ */
		return is == value->value;
	case 2: /* AND */
		return is & value->value;
	default: /* NOR */
		return ~(is | value->value);
	}
}

/* Wait for the value, or until the context has failed or has been destroyed. */
static int wait_value(struct fake_op *op)
{
	struct value_op *value = (struct value_op *)op;

	while (!fake_health(op->context)) {
		uint32_t is;
		int error = load_value(value, &is);

		if (error || value_satisfied(is, value))
			return error;
		usleep(20);
	}
	return 0;
}

static int write_value(struct fake_op *op)
{
	struct value_op *value = (struct value_op *)op;
	size_t length = sizeof(value->value);
	_Atomic uint32_t *at;

	pthread_rwlock_rdlock(&fake_map_lock);
	at = (_Atomic uint32_t *)(void *)fake_translate(op->context, FAKE_BY_COPY, value->address,
							&length, true);
	if (at)
		*at = value->value;
	pthread_rwlock_unlock(&fake_map_lock);
	return at ? 0 : FAKE_ILLEGAL_ADDRESS;
}

static int submit_value(void *stream, uint64_t address, uint32_t number, unsigned flags,
			int (*run)(struct fake_op *op), bool write)
{
	struct fake_context *context;
	struct value_op *value;
	struct end end;
	int error = fake_stream_context(stream, &context);

	if (error)
		return error;
	error = address % 4 ? FAKE_INVALID_VALUE : end_look_up(context, address, 4, write, &end);
	if (error || end.pageable)
		return error ? error : FAKE_INVALID_VALUE;
	value = calloc(1, sizeof(*value));
	if (!value)
		return FAKE_OUT_OF_MEMORY;
	value->op.run = run;
	value->address = address;
	value->value = number;
	value->flags = flags;
	return fake_submit(stream, &value->op, false);
}

FAKE_API int cuStreamWaitValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
	FAKE_ENTER();
	if (flags & ~(3U | 1U << 30))
		return FAKE_INVALID_VALUE;
	return submit_value(stream, address, value, flags, wait_value, false);
}

FAKE_API int cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
	FAKE_ENTER();
	if (flags > 1)
		return FAKE_INVALID_VALUE;
	return submit_value(stream, address, value, flags, write_value, true);
}
