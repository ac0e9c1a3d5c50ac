/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders and decoders of MAPPED and EXPORTED, the answers to MAP. */
#include "transport/shm/wire.h"

#include <errno.h>
#include <string.h>

#include "wire/bytes.h"

/* Are the handle's bytes part of the frame? Else a descriptor comes with it. */
static bool exported_has_bytes(const struct wh_exported *e)
{
	return e->type == WH_HANDLE_LEGACY || e->type == WH_HANDLE_FABRIC;
}

size_t wh_exported_encode(uint8_t *out, const struct wh_exported *e)
{
	uint8_t *at = wh_put64(out, e->id);

	at = wh_put32(at, (uint32_t)-e->error);
	if (e->error) {
		at = wh_put_bytes(at, e->text, strnlen(e->text, WH_EXPORTED_TEXT - 1));
		return (size_t)(at - out);
	}
	at = wh_put32(at, e->segments);
	at = wh_put32(at, e->index);
	*at++ = e->type;
	at = wh_put_bytes(at, e->device, sizeof(e->device));
	at = wh_put64(at, e->address);
	at = wh_put64(at, e->length);
	at = wh_put64(at, e->base);
	at = wh_put64(at, e->size);
	if (exported_has_bytes(e))
		at = wh_put_bytes(at, e->handle, sizeof(e->handle));
	return (size_t)(at - out);
}

/* The segment lies within its allocation, which does not wrap. */
static bool exported_is_valid(const struct wh_exported *e)
{
	return e->index < e->segments && e->type >= WH_HANDLE_FD && e->type <= WH_HANDLE_FABRIC &&
	       e->length && e->size && e->base <= UINT64_MAX - e->size && e->address >= e->base &&
	       e->length <= e->size && e->address - e->base <= e->size - e->length;
}

int wh_exported_decode(const uint8_t *in, size_t length, struct wh_exported *exported)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_exported e = { 0 };
	uint32_t error;
	size_t text;

	e.id = wh_take64(&bytes);
	error = wh_take32(&bytes);
	if (bytes.cut || error > 4095)
		return -EPROTO;
	e.error = -(int)error;
	if (error) {
		text = (size_t)(bytes.end - bytes.at);
		if (text >= WH_EXPORTED_TEXT)
			return -EPROTO;
		wh_take_text(&bytes, e.text, text);
		if (bytes.cut)
			return -EPROTO;
	} else {
		e.segments = wh_take32(&bytes);
		e.index = wh_take32(&bytes);
		wh_take_bytes(&bytes, &e.type, 1);
		wh_take_bytes(&bytes, e.device, sizeof(e.device));
		e.address = wh_take64(&bytes);
		e.length = wh_take64(&bytes);
		e.base = wh_take64(&bytes);
		e.size = wh_take64(&bytes);
		if (exported_has_bytes(&e))
			wh_take_bytes(&bytes, e.handle, sizeof(e.handle));
		if (bytes.cut || bytes.at != bytes.end || !exported_is_valid(&e))
			return -EPROTO;
	}
	*exported = e;
	return 0;
}

size_t wh_mapped_encode(uint8_t *out, const struct wh_mapped *mapped)
{
	size_t text = strnlen(mapped->text, WH_REFUSAL - 1);
	uint8_t *at = wh_put64(out, mapped->id);

	at = wh_put32(at, (uint32_t)-mapped->error);
	at = wh_put64(at, mapped->memory);
	at = wh_put32(at, mapped->rights);
	at = wh_put64(at, mapped->offset);
	at = wh_put64(at, mapped->length);
	at = wh_put64(at, mapped->whole);
	at = wh_put_bytes(at, mapped->text, text);
	return (size_t)(at - out);
}

int wh_mapped_decode(const uint8_t *in, size_t length, struct wh_mapped *mapped)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_mapped decoded = { 0 };
	uint32_t error;
	size_t text;

	decoded.id = wh_take64(&bytes);
	error = wh_take32(&bytes);
	decoded.memory = wh_take64(&bytes);
	decoded.rights = wh_take32(&bytes);
	decoded.offset = wh_take64(&bytes);
	decoded.length = wh_take64(&bytes);
	decoded.whole = wh_take64(&bytes);
	text = (size_t)(bytes.end - bytes.at);
	if (bytes.cut || error > 4095 || text >= WH_REFUSAL)
		return -EPROTO;
	decoded.error = -(int)error;
	if (!error && (!decoded.memory || !decoded.length ||
		       (decoded.rights != WH_ACCESS_READ &&
			decoded.rights != (WH_ACCESS_READ | WH_ACCESS_WRITE))))
		return -EPROTO;
	wh_take_text(&bytes, decoded.text, text);
	if (bytes.cut)
		return -EPROTO;
	*mapped = decoded;
	return 0;
}

void wh_lend_encode(uint8_t out[WH_LEND_SIZE], uint32_t count)
{
	wh_put64(wh_put32(out, count), 0);
}

int wh_lend_decode(const uint8_t *in, size_t length, uint32_t *count)
{
	uint32_t slots;

	if (length != WH_LEND_SIZE)
		return -EPROTO;
	slots = wh_get32(in);
	if (!slots || slots > WH_REQUEST_SLOTS || wh_get64(in + 4))
		return -EPROTO;
	*count = slots;
	return 0;
}

void wh_alive_encode(uint8_t out[WH_ALIVE_SIZE], struct wh_alive_word word)
{
	wh_put32(wh_put32(out, word.index), word.value);
}

int wh_alive_decode(const uint8_t *in, size_t length, struct wh_alive_word *word)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	uint32_t index = wh_take32(&bytes), value = wh_take32(&bytes);

	if (length != WH_ALIVE_SIZE || !index || index >= WH_ALIVE_WORDS || !value)
		return -EPROTO;
	*word = (struct wh_alive_word){ index, value };
	return 0;
}

void wh_lent_encode(uint8_t out[WH_LENT_SIZE], int error)
{
	wh_put32(out, (uint32_t)-error);
}

int wh_lent_decode(const uint8_t *in, size_t length, int *error)
{
	if (length != WH_LENT_SIZE || wh_get32(in) > 4095)
		return -EPROTO;
	*error = -(int)wh_get32(in);
	return 0;
}
