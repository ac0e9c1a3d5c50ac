/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders and decoders of the frames of the transport rdma. Every answer holds an errno, and then
 * either the reason as a text (answer_put_error(), answer_take_error()) or, for errno 0, a body. */
#include "transport/rdma/wire.h"

#include <errno.h>
#include <string.h>

#include <wherry/engine.h>
#include <wherry/transfer.h>

#include "wire/bytes.h"

_Static_assert(12 + WH_RDMA_END_MAX <= WH_RDMA_CONNECTED_MAX, "the longest end fits");
_Static_assert(WH_RDMA_KEYED_HEAD + WH_RDMA_KEY_SIZE * WH_RDMA_KEYS_MAX + WH_REFUSAL_MAX <=
		       WH_FRAME_MAX,
	       "all keys fit");
_Static_assert(WH_RDMA_NOTIFICATION_MAX <= WH_NOTIFICATION_MAX, "what a slot holds is delivered");
_Static_assert(WH_RDMA_RING_SLOTS <= 256, "a slot's number fits an immediate");

#define ERRNO_MAX 4095
#define NUMBER_MAX 0xffffffu /* 24 bits: queue pairs and packet sequence numbers */

/* ---- answers --------------------------------------------------------------------------------- */

static uint8_t *text_put(uint8_t *at, const char *text)
{
	return wh_put_bytes(at, text, strnlen(text, WH_REFUSAL_MAX - 1));
}

/* The rest of the frame, as a text for logs and terminals. */
static int text_take(struct wh_bytes *in, char text[WH_REFUSAL_MAX])
{
	size_t length = (size_t)(in->end - in->at);

	if (length >= WH_REFUSAL_MAX)
		return -EPROTO;
	wh_take_text(in, text, length);
	return in->cut ? -EPROTO : 0;
}

/* Encode the errno, and for an error the text. For errno 0 the caller appends the body. */
static uint8_t *answer_put_error(uint8_t *at, int error, const char *text)
{
	at = wh_put32(at, (uint32_t)-error);
	return error ? text_put(at, text) : at;
}

/* Decode what answer_put_error() wrote; *error is 0 if the body follows. */
static int answer_take_error(struct wh_bytes *in, int *error, char text[WH_REFUSAL_MAX])
{
	uint32_t number = wh_take32(in);

	if (in->cut || number > ERRNO_MAX)
		return -EPROTO;
	*error = -(int)number;
	return number ? text_take(in, text) : 0;
}

static bool is_complete(const struct wh_bytes *in)
{
	return !in->cut && in->at == in->end;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static uint8_t *end_put(uint8_t *at, const struct wh_rdma_end *end)
{
	size_t length = strnlen(end->name, WH_NAME_MAX - 1);

	at = wh_put8(at, end->link);
	at = wh_put8(at, end->gid_type);
	at = wh_put8(at, end->mtu);
	at = wh_put8(at, end->responder_resources);
	at = wh_put8(at, end->initiator_depth);
	at = wh_put8(at, 0);
	at = wh_put16(at, end->lid);
	at = wh_put16(at, end->pkey);
	at = wh_put32(at, end->qp);
	at = wh_put32(at, end->psn);
	at = wh_put_bytes(at, end->gid, sizeof(end->gid));
	at = wh_put8(at, (uint8_t)length);
	return wh_put_bytes(at, end->name, length);
}

static int end_take(struct wh_bytes *in, struct wh_rdma_end *end)
{
	uint8_t zero, length;

	end->link = wh_take8(in);
	end->gid_type = wh_take8(in);
	end->mtu = wh_take8(in);
	end->responder_resources = wh_take8(in);
	end->initiator_depth = wh_take8(in);
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
	if (!is_complete(in) || !wh_text_is_clean(end->name, length))
		return -EPROTO;
	if (zero || end->link < WH_RDMA_INFINIBAND || end->link > WH_RDMA_ETHERNET ||
	    end->gid_type > 2 || (end->link == WH_RDMA_INFINIBAND) != (end->gid_type == 0) ||
	    end->mtu < 1 || end->mtu > 5 || end->qp > NUMBER_MAX || end->psn > NUMBER_MAX)
		return -EPROTO;
	return 0;
}

size_t wh_rdma_connect_encode(uint8_t *out, const struct wh_rdma_connect *connect)
{
	uint8_t *at = wh_put32(out, connect->number);

	at = wh_put16(at, connect->index);
	return (size_t)(end_put(wh_put16(at, connect->turn), &connect->end) - out);
}

int wh_rdma_connect_decode(const uint8_t *in, size_t length, struct wh_rdma_connect *connect)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_connect got = { .number = wh_take32(&bytes) };

	got.index = wh_take16(&bytes);
	got.turn = wh_take16(&bytes);
	if (end_take(&bytes, &got.end))
		return -EPROTO;
	*connect = got;
	return 0;
}

size_t wh_rdma_connected_encode(uint8_t *out, const struct wh_rdma_connected *connected)
{
	uint8_t *at = wh_put32(out, connected->number);

	at = answer_put_error(at, connected->error, connected->text);
	if (!connected->error)
		at = end_put(wh_put32(at, connected->nic), &connected->end);
	return (size_t)(at - out);
}

int wh_rdma_connected_decode(const uint8_t *in, size_t length, struct wh_rdma_connected *connected)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_connected got = { .number = wh_take32(&bytes) };

	if (answer_take_error(&bytes, &got.error, got.text))
		return -EPROTO;
	if (!got.error) {
		got.nic = wh_take32(&bytes);
		if (end_take(&bytes, &got.end))
			return -EPROTO;
	}
	*connected = got;
	return 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

size_t wh_rdma_keyed_encode(uint8_t *out, const struct wh_rdma_keyed *keyed)
{
	uint8_t *at = wh_put32(wh_put64(out, keyed->id), keyed->nic);

	at = answer_put_error(at, keyed->error, keyed->text);
	if (!keyed->error) {
		at = wh_put8(at, keyed->method);
		at = wh_put8(at, keyed->flush);
		at = wh_put8(at, keyed->distance);
		at = wh_put8(at, keyed->bounce);
		at = wh_put32(at, keyed->count);
		at = wh_put_bytes(at, keyed->keys, (size_t)keyed->count * WH_RDMA_KEY_SIZE);
		if (keyed->method == WH_RDMA_STAGED)
			at = wh_put64(at, keyed->address);
		at = text_put(at, keyed->text);
	}
	return (size_t)(at - out);
}

/* Do the keys, for `length` bytes, belong to whole slots at an address? */
static bool keyed_is_bounce(const struct wh_rdma_keyed *keyed, uint64_t length)
{
	return keyed->bounce && keyed->bounce < WH_RDMA_BOUNCES && !keyed->flush &&
	       length % WH_RDMA_BOUNCE_SLOT == 0 &&
	       length <= (uint64_t)WH_RDMA_BOUNCE_SLOTS * WH_RDMA_BOUNCE_SLOT && keyed->address &&
	       keyed->address <= UINT64_MAX - length;
}

/* No key is for 0 bytes, and the sum of their bytes does not wrap. */
static int keys_take(struct wh_bytes *in, struct wh_rdma_keyed *keyed)
{
	uint64_t sum = 0, length;

	keyed->method = wh_take8(in);
	keyed->flush = wh_take8(in);
	keyed->distance = wh_take8(in);
	keyed->bounce = wh_take8(in);
	if (keyed->method > WH_RDMA_STAGED || keyed->flush > 1)
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
	if (keyed->method != WH_RDMA_STAGED)
		return keyed->bounce ? -EPROTO : 0;
	keyed->address = wh_take64(in);
	return in->cut || !keyed_is_bounce(keyed, sum) ? -EPROTO : 0;
}

int wh_rdma_keyed_decode(const uint8_t *in, size_t length, struct wh_rdma_keyed *keyed)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_keyed got = { .id = wh_take64(&bytes) };

	got.nic = wh_take32(&bytes);
	if (answer_take_error(&bytes, &got.error, got.text))
		return -EPROTO;
	if (!got.error && (keys_take(&bytes, &got) || text_take(&bytes, got.text)))
		return -EPROTO;
	*keyed = got;
	return 0;
}

/* ---- flushing -------------------------------------------------------------------------------- */

size_t wh_rdma_flushed_encode(uint8_t *out, const struct wh_rdma_flushed *flushed)
{
	uint8_t *at = wh_put32(out, flushed->number);

	return (size_t)(answer_put_error(at, flushed->error, flushed->text) - out);
}

int wh_rdma_flushed_decode(const uint8_t *in, size_t length, struct wh_rdma_flushed *flushed)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_flushed got = { .number = wh_take32(&bytes) };

	if (answer_take_error(&bytes, &got.error, got.text) || !is_complete(&bytes))
		return -EPROTO;
	*flushed = got;
	return 0;
}

/* ---- bounce buffers -------------------------------------------------------------------------- */

size_t wh_rdma_bounce_opened_encode(uint8_t *out, const struct wh_rdma_bounce_opened *opened)
{
	uint8_t *at = answer_put_error(out, opened->error, opened->text);

	if (!opened->error)
		at = wh_put32(wh_put64(at, opened->address), opened->slots);
	return (size_t)(at - out);
}

int wh_rdma_bounce_opened_decode(const uint8_t *in, size_t length,
				 struct wh_rdma_bounce_opened *opened)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_bounce_opened got = { .error = 0 };

	if (answer_take_error(&bytes, &got.error, got.text))
		return -EPROTO;
	if (!got.error) {
		got.address = wh_take64(&bytes);
		got.slots = wh_take32(&bytes);
		if (!is_complete(&bytes) || !got.address || !got.slots ||
		    got.slots > WH_RDMA_BOUNCE_SLOTS ||
		    got.address > UINT64_MAX - (uint64_t)got.slots * WH_RDMA_BOUNCE_SLOT)
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
	if (bytes.cut || got.slot >= WH_RDMA_SLOTS || (got.op != WH_READ && got.op != WH_WRITE) ||
	    bytes.at == bytes.end)
		return -EPROTO;
	got.extents = bytes.at;
	got.length = (size_t)(bytes.end - bytes.at);
	*copy = got;
	return 0;
}

/* ---- notifications --------------------------------------------------------------------------- */

size_t wh_rdma_ring_opened_encode(uint8_t *out, const struct wh_rdma_ring_opened *opened)
{
	uint8_t *at = answer_put_error(out, opened->error, opened->text);

	if (!opened->error)
		at = wh_put64(at, opened->address);
	for (uint32_t i = 0; !opened->error && i < opened->count; i++)
		at = wh_put32(wh_put32(at, opened->keys[i].nic), opened->keys[i].key);
	return (size_t)(at - out);
}

int wh_rdma_ring_opened_decode(const uint8_t *in, size_t length, struct wh_rdma_ring_opened *opened)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_rdma_ring_opened got = { .error = 0 };

	if (answer_take_error(&bytes, &got.error, got.text))
		return -EPROTO;
	if (!got.error) {
		got.address = wh_take64(&bytes);
		for (; bytes.at != bytes.end && got.count < WH_RDMA_RING_KEYS; got.count++) {
			got.keys[got.count].nic = wh_take32(&bytes);
			got.keys[got.count].key = wh_take32(&bytes);
		}
		if (!is_complete(&bytes) || !got.count || !got.address ||
		    got.address > UINT64_MAX - (uint64_t)WH_RDMA_RING_SLOTS * WH_RDMA_RING_SLOT)
			return -EPROTO;
	}
	*opened = got;
	return 0;
}

void wh_rdma_notification_encode(uint8_t out[WH_RDMA_NOTIFICATION_HEAD],
				 const struct wh_rdma_notification *notification)
{
	out = wh_put64(wh_put64(out, notification->sequence), notification->tag);
	wh_put32(wh_put32(out, notification->length), 0);
}

int wh_rdma_notification_decode(const uint8_t in[WH_RDMA_NOTIFICATION_HEAD], uint32_t imm,
				struct wh_rdma_notification *notification)
{
	struct wh_rdma_notification got = { .sequence = wh_get64(in),
					    .tag = wh_get64(in + 8),
					    .length = wh_get32(in + 16) };

	if (got.length > WH_RDMA_NOTIFICATION_MAX || wh_get32(in + 20) ||
	    wh_rdma_imm_slot(imm) < 0 || wh_rdma_imm(imm & 0xff, got.sequence) != imm)
		return -EPROTO;
	*notification = got;
	return 0;
}

uint32_t wh_rdma_imm(uint32_t slot, uint64_t sequence)
{
	return (uint32_t)(sequence & NUMBER_MAX) << 8 | slot;
}

int wh_rdma_imm_slot(uint32_t imm)
{
	return (imm & 0xff) < WH_RDMA_RING_SLOTS ? (int)(imm & 0xff) : -EPROTO;
}
