/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records in and out, without waiting. A record is copied into one buffer to be sent, and received
 * into another: the sender's memory may change meanwhile, and the receiver's must not get bytes
 * that are damaged. The buffers start small and grow with the first long record.
 */
#include "net/records.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "util/list.h"
#include "wire/record.h"

/* Bytes to ask the socket for at least: many short records in one call. Those behind the record
 * that is due are moved to the front of the buffer. */
#define AHEAD (4096u + 2 * WH_RECORD_HEADER)
#define ROOM_FOR(length) ((size_t)(length) + 2 * WH_RECORD_HEADER)

struct buffer {
	uint8_t *bytes;
	size_t start, end, room;
};

struct records {
	struct wh_channel channel;
	int fd;
	int error; /* why nothing more can be received; 0: nothing */
	struct wh_record_way sent, received;
	struct buffer out; /* the record that is being sent */
	struct buffer in; /* from `start` on, the rest of a checked record, then what follows */
	size_t checked; /* bytes of that rest */
	char text[WH_TEXT_MAX];
};

static struct records *records_of(struct wh_channel *channel)
{
	return wh_container(channel, struct records, channel);
}

static const struct records *records_of_const(const struct wh_channel *channel)
{
	return wh_container(channel, const struct records, channel);
}

static bool buffer_grow(struct buffer *buffer, size_t room)
{
	uint8_t *grown;

	if (room <= buffer->room)
		return true;
	grown = realloc(buffer->bytes, room);
	if (!grown)
		return false;
	buffer->bytes = grown;
	buffer->room = room;
	return true;
}

/* Control connections are many, and mostly idle: an empty buffer of theirs has no memory. */
static void buffer_rest(const struct records *records, struct buffer *buffer)
{
	if (buffer->start < buffer->end || records->sent.most > WH_RECORD_CONTROL_MAX)
		return;
	free(buffer->bytes);
	*buffer = (struct buffer){ .bytes = NULL };
}

/* ---- sending ----------------------------------------------------------- */

/* Send the rest of the record in the buffer. 0: none is left; or -1 and errno. */
static int records_send_out(struct records *records)
{
	struct buffer *out = &records->out;
	ssize_t got;

	while (out->start < out->end) {
		got = send(records->fd, out->bytes + out->start, out->end - out->start,
			   MSG_DONTWAIT | MSG_NOSIGNAL);
		if (got < 0) {
			if (errno == EINTR)
				errno = EAGAIN;
			return -1;
		}
		out->start += (size_t)got;
	}
	return 0;
}

static int records_flush(struct wh_channel *channel)
{
	struct records *records = records_of(channel);
	int error = records_send_out(records);

	if (!error)
		buffer_rest(records, &records->out);
	return error;
}

static bool records_unsent(const struct wh_channel *channel)
{
	const struct buffer *out = &records_of_const(channel)->out;

	return out->start < out->end;
}

/* Copy the bytes of the next record behind its header. Advances *part, and *done bytes of it.
 * Returns the bytes. */
static size_t records_gather(struct records *records, const struct iovec **part,
			     const struct iovec *end, size_t *done)
{
	size_t used = 0, most = records->out.room - WH_RECORD_HEADER;

	if (most > records->sent.most)
		most = records->sent.most;
	while (*part < end && used < most) {
		size_t length = (*part)->iov_len - *done;

		if (length > most - used)
			length = most - used;
		memcpy(records->out.bytes + WH_RECORD_HEADER + used,
		       (const char *)(*part)->iov_base + *done, length);
		used += length;
		*done += length;
		if (*done == (*part)->iov_len) {
			*done = 0;
			++*part;
		}
	}
	return used;
}

static ssize_t records_send(struct wh_channel *channel, const struct iovec *parts, int count)
{
	struct records *records = records_of(channel);
	const struct iovec *part = parts, *end = parts + count;
	struct buffer *out = &records->out;
	size_t total = 0, done = 0, length = 0;

	for (int i = 0; i < count; i++)
		length += parts[i].iov_len;
	if (records_send_out(records))
		return -1;
	if (!buffer_grow(out, ROOM_FOR(length < AHEAD ? AHEAD : records->sent.most))) {
		errno = ENOMEM;
		return -1;
	}
	while ((length = records_gather(records, &part, end, &done))) {
		wh_record_seal(&records->sent, out->bytes, out->bytes + WH_RECORD_HEADER,
			       (uint32_t)length);
		out->start = 0;
		out->end = WH_RECORD_HEADER + length;
		total += length;
		/* The rest of this record waits, and is sent first the next time. */
		if (records_send_out(records)) {
			if (errno != EAGAIN)
				return -1;
			break;
		}
	}
	buffer_rest(records, out);
	return (ssize_t)total;
}

/* ---- receiving --------------------------------------------------------- */

static int records_damaged(struct records *records)
{
	unsigned long long number = records->received.number & ~(UINT64_C(1) << 63);

	records->error = EBADMSG;
	snprintf(records->text, sizeof(records->text),
		 "sent bytes that were damaged on the way: record %llu does not match its checksum "
		 "(integrity=crc32c)",
		 number);
	return -EBADMSG;
}

/* The bytes of the next record with its header, as far as they are known: 0 before its header has
 * arrived. 0 or -EBADMSG. */
static int records_due(const struct records *records, size_t *due)
{
	const struct buffer *in = &records->in;
	uint32_t length;

	*due = 0;
	if (in->end - in->start < WH_RECORD_HEADER)
		return 0;
	if (wh_record_length(&records->received, in->bytes + in->start, &length))
		return -EBADMSG;
	*due = WH_RECORD_HEADER + length;
	return 0;
}

/* Receive from the socket: what is due of the next record, and the next header or more. Returns
 * what recv() returns, and sets *drained if the socket has no more bytes. */
static ssize_t records_fetch(struct records *records, size_t due, bool *drained)
{
	struct buffer *in = &records->in;
	size_t want = due + WH_RECORD_HEADER > AHEAD ? due + WH_RECORD_HEADER : AHEAD;
	ssize_t got;
	int error;

	if (in->start) {
		memmove(in->bytes, in->bytes + in->start, in->end - in->start);
		in->end -= in->start;
		in->start = 0;
	}
	if (want > in->room &&
	    !buffer_grow(in, want > AHEAD ? ROOM_FOR(records->received.most) : AHEAD)) {
		errno = ENOMEM;
		return -1;
	}
	got = recv(records->fd, in->bytes + in->end, want - in->end, MSG_DONTWAIT);
	if (got < 0 && errno == EINTR)
		errno = EAGAIN;
	error = errno;
	*drained = got < (ssize_t)(want - in->end);
	if (got > 0)
		in->end += (size_t)got;
	else
		buffer_rest(records, in);
	errno = error;
	return got;
}

/* Have a checked record in the buffer. 1; 0: the peer has closed the connection; or -1 and
 * errno. */
static ssize_t records_next(struct records *records, bool *drained)
{
	struct buffer *in = &records->in;
	ssize_t got;
	size_t due;

	for (;;) {
		if (!records->error && records_due(records, &due))
			records_damaged(records);
		if (!records->error && due && in->end - in->start >= due) {
			if (!wh_record_check(&records->received, in->bytes + in->start)) {
				in->start += WH_RECORD_HEADER;
				records->checked = due - WH_RECORD_HEADER;
				return 1;
			}
			records_damaged(records);
		}
		if (records->error || *drained) {
			errno = records->error ? records->error : EAGAIN;
			return -1;
		}
		got = records_fetch(records, due, drained);
		if (got <= 0)
			return got;
	}
}

static ssize_t records_receive(struct wh_channel *channel, const struct iovec *parts, int count)
{
	struct records *records = records_of(channel);
	struct buffer *in = &records->in;
	size_t total = 0, done = 0, length;
	bool drained = false;
	ssize_t got;

	for (int i = 0; i < count;) {
		if (done == parts[i].iov_len) {
			done = 0;
			i++;
			continue;
		}
		if (!records->checked) {
			got = records_next(records, &drained);
			if (got <= 0)
				return total ? (ssize_t)total : got;
		}
		length = parts[i].iov_len - done;
		if (length > records->checked)
			length = records->checked;
		memcpy((char *)parts[i].iov_base + done, in->bytes + in->start, length);
		in->start += length;
		records->checked -= length;
		done += length;
		total += length;
	}
	return (ssize_t)total;
}

/* A partial record does not count: the rest of it raises an event. Damage does: it is reported by
 * the next call. */
static bool records_pending(const struct wh_channel *channel)
{
	const struct records *records = records_of_const(channel);
	const struct buffer *in = &records->in;
	size_t due;

	return records->error || records->checked || records_due(records, &due) ||
	       (due && in->end - in->start >= due);
}

/* ---- the channel's life ------------------------------------------------ */

static void records_free(struct wh_channel *channel)
{
	struct records *records = records_of(channel);

	free(records->out.bytes);
	free(records->in.bytes);
	free(records);
}

static int records_handshake(struct wh_channel *channel)
{
	(void)channel;
	return 0;
}

static bool records_established(const struct wh_channel *channel)
{
	(void)channel;
	return true;
}

static const char *records_text(const struct wh_channel *channel)
{
	return records_of_const(channel)->text;
}

static const char *records_name(const struct wh_channel *channel)
{
	(void)channel;
	return "";
}

static void records_describe(const struct wh_channel *channel, char *out, size_t size)
{
	(void)channel;
	snprintf(out, size, "integrity: crc32c");
}

static const struct wh_channel_ops records_ops = {
	.held = sizeof(struct records) + 2 * ROOM_FOR(WH_RECORD_DATA_MAX),
	.free = records_free,
	.handshake = records_handshake,
	.established = records_established,
	.send = records_send,
	.receive = records_receive,
	.flush = records_flush,
	.unsent = records_unsent,
	.pending = records_pending,
	.text = records_text,
	.name = records_name,
	.describe = records_describe,
};

struct wh_channel *wh_records_new(int fd, uint32_t first, uint32_t most, bool owner)
{
	struct records *records = calloc(1, sizeof(*records));
	wh_crc32c *sum = wh_crc32c_choose()->sum;

	if (!records)
		return NULL;
	records->channel.ops = &records_ops;
	records->fd = fd;
	wh_record_start(&records->sent, sum, first, most, owner);
	wh_record_start(&records->received, sum, first, most, !owner);
	return &records->channel;
}
