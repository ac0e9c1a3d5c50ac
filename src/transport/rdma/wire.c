/* SPDX-License-Identifier: Apache-2.0 */
/* What two ends of the transport rdma tell each other: their queue pairs, and the keys of regions.
 */
#include <errno.h>
#include <string.h>

#include <wherry/engine.h>
#include <wherry/transfer.h>

#include "wire/bytes.h"
#include "wire/wire.h"

_Static_assert(12 + WH_RDMA_END_MAX <= WH_RDMA_CONNECTED_MAX, "the longest end fits");
_Static_assert(WH_RDMA_KEYED_HEAD + WH_RDMA_KEY_SIZE * WH_RDMA_KEYS_MAX + WH_REFUSAL_MAX <=
		       WH_FRAME_MAX,
	       "all keys fit");

#define ERRNO_MAX 4095
#define NUMBER_MAX 0xffffffu /* of queue pairs and packets */

/* ---- ends --------------------------------------------------------------------------------------
 */

static uint8_t *put_end(uint8_t *at, const struct wh_rdma_end *end)
{
	size_t length = strnlen(end->name, WH_NAME_MAX - 1);

	at = wh_put8(at, end->link);
	at = wh_put8(at, end->gid_type);
	at = wh_put8(at, end->mtu);
	at = wh_put8(at, end->answers);
	at = wh_put8(at, end->asks);
	at = wh_put8(at, 0);
	at = wh_put16(at, end->lid);
	at = wh_put16(at, end->pkey);
	at = wh_put32(at, end->qp);
	at = wh_put32(at, end->psn);
	at = wh_put_bytes(at, end->gid, sizeof(end->gid));
	at = wh_put8(at, (uint8_t)length);
	return wh_put_bytes(at, end->name, length);
}

/* A text that goes to logs and terminals. */
static int take_text(struct wh_bytes *in, char *out, size_t room, size_t length)
{
	if (length >= room)
		return -EPROTO;
	wh_take_text(in, out, length);
	return in->cut ? -EPROTO : 0;
}

static int take_end(struct wh_bytes *in, struct wh_rdma_end *end)
{
	uint8_t zero, length;

	end->link = wh_take8(in);
	end->gid_type = wh_take8(in);
	end->mtu = wh_take8(in);
	end->answers = wh_take8(in);
	end->asks = wh_take8(in);
	zero = wh_take8(in);
	end->lid = wh_take16(in);
	end->pkey = wh_take16(in);
	end->qp = wh_take32(in);
	end->psn = wh_take32(in);
	wh_take_bytes(in, end->gid, sizeof(end->gid));
	length = wh_take8(in);
	if (length >= sizeof(end->name))
		return -EPROTO;
	wh_take_bytes(in, end->name, length);
	end->name[length] = 0;
	if (in->cut || !wh_text_is_clean(end->name, length))
		return -EPROTO;
	if (zero || end->link < WH_RDMA_INFINIBAND || end->link > WH_RDMA_ETHERNET ||
	    end->gid_type > 2 || (end->link == WH_RDMA_INFINIBAND) != (end->gid_type == 0) ||
	    end->mtu < 1 || end->mtu > 5 || end->qp > NUMBER_MAX || end->psn > NUMBER_MAX)
		return -EPROTO;
	return in->at == in->end ? 0 : -EPROTO;
}

/* ---- connecting --------------------------------------------------------------------------------
 */

size_t wh_rdma_connect_encode(uint8_t *out, const struct wh_rdma_connect *connect)
{
	uint8_t *at = wh_put32(out, connect->number);

	at = wh_put16(at, connect->index);
	return (size_t)(put_end(wh_put16(at, connect->turn), &connect->end) - out);
}

int wh_rdma_connect_decode(const uint8_t *in, size_t length, struct wh_rdma_connect *connect)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_connect got = { .number = wh_take32(&bytes) };

	got.index = wh_take16(&bytes);
	got.turn = wh_take16(&bytes);
	if (take_end(&bytes, &got.end))
		return -EPROTO;
	*connect = got;
	return 0;
}

size_t wh_rdma_connected_encode(uint8_t *out, const struct wh_rdma_connected *connected)
{
	uint8_t *at = wh_put32(out, connected->number);

	at = wh_put32(at, (uint32_t)-connected->error);
	if (connected->error) {
		at = wh_put_bytes(at, connected->text,
				  strnlen(connected->text, WH_REFUSAL_MAX - 1));
		return (size_t)(at - out);
	}
	return (size_t)(put_end(wh_put32(at, connected->nic), &connected->end) - out);
}

int wh_rdma_connected_decode(const uint8_t *in, size_t length, struct wh_rdma_connected *connected)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_connected got = { .number = wh_take32(&bytes) };
	uint32_t error = wh_take32(&bytes);

	if (bytes.cut || error > ERRNO_MAX)
		return -EPROTO;
	got.error = -(int)error;
	if (error) {
		if (take_text(&bytes, got.text, sizeof(got.text), (size_t)(bytes.end - bytes.at)))
			return -EPROTO;
	} else {
		got.nic = wh_take32(&bytes);
		if (take_end(&bytes, &got.end))
			return -EPROTO;
	}
	*connected = got;
	return 0;
}

/* ---- keys --------------------------------------------------------------------------------------
 */

size_t wh_rdma_keyed_encode(uint8_t *out, const struct wh_rdma_keyed *keyed)
{
	uint8_t *at = wh_put64(out, keyed->id);

	at = wh_put32(at, keyed->nic);
	at = wh_put32(at, (uint32_t)-keyed->error);
	if (!keyed->error) {
		at = wh_put8(at, keyed->way);
		at = wh_put8(at, keyed->flush);
		at = wh_put8(at, keyed->distance);
		at = wh_put8(at, 0);
		at = wh_put32(at, keyed->count);
		at = wh_put_bytes(at, keyed->keys, (size_t)keyed->count * WH_RDMA_KEY_SIZE);
	}
	at = wh_put_bytes(at, keyed->text, strnlen(keyed->text, WH_REFUSAL_MAX - 1));
	return (size_t)(at - out);
}

/* What they are for has to be some bytes, and no more than there can be. */
static int take_keys(struct wh_bytes *in, struct wh_rdma_keyed *keyed)
{
	uint64_t sum = 0, length;

	keyed->way = wh_take8(in);
	keyed->flush = wh_take8(in);
	keyed->distance = wh_take8(in);
	if (wh_take8(in) || keyed->way > WH_RDMA_PEERMEM || keyed->flush > 1)
		return -EPROTO;
	keyed->count = wh_take32(in);
	if (in->cut || !keyed->count || keyed->count > WH_RDMA_KEYS_MAX ||
	    (size_t)(in->end - in->at) < (size_t)keyed->count * WH_RDMA_KEY_SIZE)
		return -EPROTO;
	keyed->keys = in->at;
	for (uint32_t i = 0; i < keyed->count; i++) {
		length = wh_take64(in);
		wh_take32(in);
		if (!length || __builtin_add_overflow(sum, length, &sum))
			return -EPROTO;
	}
	return 0;
}

int wh_rdma_keyed_decode(const uint8_t *in, size_t length, struct wh_rdma_keyed *keyed)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_keyed got = { .id = wh_take64(&bytes) };
	uint32_t error;

	got.nic = wh_take32(&bytes);
	error = wh_take32(&bytes);
	if (bytes.cut || error > ERRNO_MAX)
		return -EPROTO;
	got.error = -(int)error;
	if ((!error && take_keys(&bytes, &got)) ||
	    take_text(&bytes, got.text, sizeof(got.text), (size_t)(bytes.end - bytes.at)))
		return -EPROTO;
	*keyed = got;
	return 0;
}

/* ---- flushing ----------------------------------------------------------------------------------
 */

size_t wh_rdma_flushed_encode(uint8_t *out, const struct wh_rdma_flushed *flushed)
{
	uint8_t *at = wh_put32(wh_put32(out, flushed->number), (uint32_t)-flushed->error);

	if (flushed->error)
		at = wh_put_bytes(at, flushed->text, strnlen(flushed->text, WH_REFUSAL_MAX - 1));
	return (size_t)(at - out);
}

int wh_rdma_flushed_decode(const uint8_t *in, size_t length, struct wh_rdma_flushed *flushed)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_flushed got = { .number = wh_take32(&bytes) };
	uint32_t error = wh_take32(&bytes);

	if (bytes.cut || error > ERRNO_MAX || (!error && bytes.at != bytes.end) ||
	    take_text(&bytes, got.text, sizeof(got.text), (size_t)(bytes.end - bytes.at)))
		return -EPROTO;
	got.error = -(int)error;
	*flushed = got;
	return 0;
}

/* ---- staging at the owner's end ----------------------------------------------------------------
 */

size_t wh_rdma_bounce_opened_encode(uint8_t *out, const struct wh_rdma_bounce_opened *opened)
{
	uint8_t *at = wh_put32(out, (uint32_t)-opened->error);

	if (opened->error)
		at = wh_put_bytes(at, opened->text, strnlen(opened->text, WH_REFUSAL_MAX - 1));
	else
		at = wh_put32(wh_put64(at, opened->address), opened->slots);
	return (size_t)(at - out);
}

int wh_rdma_bounce_opened_decode(const uint8_t *in, size_t length,
				 struct wh_rdma_bounce_opened *opened)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	uint32_t error = wh_take32(&bytes);
	struct wh_rdma_bounce_opened got = { .error = 0 };

	if (bytes.cut || error > ERRNO_MAX)
		return -EPROTO;
	got.error = -(int)error;
	if (!error) {
		got.address = wh_take64(&bytes);
		got.slots = wh_take32(&bytes);
		if (bytes.cut || bytes.at != bytes.end || !got.address || !got.slots ||
		    got.slots > WH_RDMA_BOUNCE_SLOTS ||
		    got.address > UINT64_MAX - (uint64_t)got.slots * WH_RDMA_BOUNCE_SLOT)
			return -EPROTO;
	} else if (take_text(&bytes, got.text, sizeof(got.text), (size_t)(bytes.end - bytes.at))) {
		return -EPROTO;
	}
	*opened = got;
	return 0;
}

uint8_t *wh_rdma_copy_encode(uint8_t *out, uint32_t slot, uint32_t op)
{
	return wh_put32(wh_put32(out, slot), op);
}

int wh_rdma_copy_decode(const uint8_t *in, size_t length, struct wh_rdma_copy *copy)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_copy got = { .slot = wh_take32(&bytes) };

	got.op = wh_take32(&bytes);
	if (bytes.cut || got.slot >= WH_RDMA_BOUNCE_SLOTS ||
	    (got.op != WH_READ && got.op != WH_WRITE) || bytes.at == bytes.end)
		return -EPROTO;
	got.extents = bytes.at;
	got.length = (size_t)(bytes.end - bytes.at);
	*copy = got;
	return 0;
}

/* ---- letters -----------------------------------------------------------------------------------
 */

_Static_assert(WH_RDMA_NOTIFICATION_MAX == WH_NOTIFICATION_MAX, "a notification fits a slot");
_Static_assert(WH_RDMA_RING_SLOTS <= 256, "a slot's number fits an immediate");

size_t wh_rdma_ring_opened_encode(uint8_t *out, const struct wh_rdma_ring_opened *opened)
{
	uint8_t *at = wh_put32(out, (uint32_t)-opened->error);

	if (opened->error)
		return (size_t)(wh_put_bytes(at, opened->text,
					     strnlen(opened->text, WH_REFUSAL_MAX - 1)) -
				out);
	at = wh_put64(at, opened->address);
	for (uint32_t i = 0; i < opened->count; i++)
		at = wh_put32(wh_put32(at, opened->keys[i].nic), opened->keys[i].key);
	return (size_t)(at - out);
}

int wh_rdma_ring_opened_decode(const uint8_t *in, size_t length, struct wh_rdma_ring_opened *opened)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	uint32_t error = wh_take32(&bytes);
	struct wh_rdma_ring_opened got = { .error = 0 };

	if (bytes.cut || error > ERRNO_MAX)
		return -EPROTO;
	got.error = -(int)error;
	if (error) {
		if (take_text(&bytes, got.text, sizeof(got.text), (size_t)(bytes.end - bytes.at)))
			return -EPROTO;
		*opened = got;
		return 0;
	}
	got.address = wh_take64(&bytes);
	for (; bytes.at != bytes.end && got.count < WH_RDMA_RING_KEYS; got.count++) {
		got.keys[got.count].nic = wh_take32(&bytes);
		got.keys[got.count].key = wh_take32(&bytes);
	}
	if (bytes.cut || bytes.at != bytes.end || !got.count || !got.address ||
	    got.address > UINT64_MAX - (uint64_t)WH_RDMA_RING_SLOTS * WH_RDMA_RING_SLOT)
		return -EPROTO;
	*opened = got;
	return 0;
}

void wh_rdma_notification_encode(uint8_t out[WH_RDMA_NOTIFICATION_HEAD],
				 const struct wh_rdma_notification *notification)
{
	wh_put32(wh_put32(wh_put64(out, notification->sequence), notification->length), 0);
}

uint32_t wh_rdma_imm(uint32_t slot, uint64_t sequence)
{
	return (uint32_t)(sequence & NUMBER_MAX) << 8 | slot;
}

int wh_rdma_imm_slot(uint32_t imm)
{
	return (imm & 0xff) < WH_RDMA_RING_SLOTS ? (int)(imm & 0xff) : -EPROTO;
}

int wh_rdma_notification_decode(const uint8_t in[WH_RDMA_NOTIFICATION_HEAD], uint32_t imm,
				struct wh_rdma_notification *notification)
{
	struct wh_rdma_notification got = { .sequence = wh_get64(in), .length = wh_get32(in + 8) };

	if (!got.length || got.length > WH_RDMA_NOTIFICATION_MAX || wh_get32(in + 12) ||
	    wh_rdma_imm_slot(imm) < 0 || wh_rdma_imm(imm & 0xff, got.sequence) != imm)
		return -EPROTO;
	*notification = got;
	return 0;
}
