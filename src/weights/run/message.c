/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/run/message.h"

#include <endian.h>
#include <string.h>

#include "util/text.h"

#define HELLO_MAGIC 0x4f4c4c454857u /* "WHELLO" */
#define HEAD_MAGIC 0x4c5254434857u /* "WHCTRL" */
#define FORMAT 1

/* Words of a head. Slots have two each: the version, and a number that depends on it and on the
 * state, because other engines may read the two while they change. */
enum {
	HEAD_KIND,
	HEAD_LISTS,
	HEAD_DIGEST,
	HEAD_PUBLISHED = 4,
	HEAD_RECEIVED,
	HEAD_SLOTS,
	HEAD_BEGUN = 12
};

static void put(uint8_t *out, size_t at, uint64_t value)
{
	value = htole64(value);
	memcpy(out + at, &value, sizeof(value));
}

static uint64_t get(const uint8_t *bytes, size_t at)
{
	uint64_t value;

	memcpy(&value, bytes + at, sizeof(value));
	return le64toh(value);
}

void wh_weights_hello_encode(const struct wh_weights_hello *hello, uint8_t out[WH_HELLO_BYTES])
{
	memset(out, 0, WH_HELLO_BYTES);
	put(out, 0, HELLO_MAGIC << 16 | FORMAT);
	put(out, 8, hello->digest[0]);
	put(out, 16, hello->digest[1]);
	put(out, 24, hello->control);
	put(out, 32, hello->control_bytes);
	put(out, 40, hello->text);
	put(out, 48, hello->text_bytes);
	memcpy(out + 56, hello->url, WH_HELLO_URL);
	put(out, 56 + WH_HELLO_URL, hello->flags);
}

bool wh_weights_hello_decode(const void *bytes, size_t length, struct wh_weights_hello *out)
{
	const uint8_t *at = bytes;

	if (length != WH_HELLO_BYTES || get(at, 0) != (HELLO_MAGIC << 16 | FORMAT))
		return false;
	*out = (struct wh_weights_hello){
		.digest = { get(at, 8), get(at, 16) },
		.control = get(at, 24),
		.control_bytes = get(at, 32),
		.text = get(at, 40),
		.text_bytes = get(at, 48),
		.flags = get(at, 56 + WH_HELLO_URL),
	};
	memcpy(out->url, at + 56, WH_HELLO_URL);
	return memchr(out->url, 0, WH_HELLO_URL) && wh_text_is_clean(out->url, strlen(out->url));
}

/* ---- the control block ------------------------------------------------------------------------
 */

/* Peers may read it at this moment, by a system call of another thread, which the thread sanitizer
 * takes for a race. They find out that it has changed. */
__attribute__((no_sanitize("thread"))) static void word_store(uint64_t *words, size_t at,
							      uint64_t value)
{
	__atomic_store_n(&words[at], htole64(value), __ATOMIC_RELEASE);
}

static uint64_t slot_check(uint64_t version, enum wh_copy_state state)
{
	return (version ^ (uint64_t)state << 62) * 0x9e3779b97f4a7c15u;
}

void wh_weights_head_init(uint64_t *words, const uint64_t digest[2], uint32_t ids, uint32_t steps)
{
	word_store(words, HEAD_LISTS, (uint64_t)ids << 32 | steps);
	word_store(words, HEAD_DIGEST, digest[0]);
	word_store(words, HEAD_DIGEST + 1, digest[1]);
	word_store(words, HEAD_KIND, HEAD_MAGIC << 16 | FORMAT);
}

void wh_weights_head_set(uint64_t *words, enum wh_copy_slot slot, uint64_t version,
			 enum wh_copy_state state)
{
	size_t at = HEAD_SLOTS + 2 * (size_t)slot;

	word_store(words, at + 1, slot_check(version, state));
	word_store(words, at, version);
}

void wh_weights_head_clear(uint64_t *words, enum wh_copy_slot slot)
{
	word_store(words, HEAD_SLOTS + 2 * (size_t)slot, 0);
	/* Also before stores past the caches, with which copies fill memory. */
	__sync_synchronize();
}

void wh_weights_head_published(uint64_t *words, uint64_t version)
{
	word_store(words, HEAD_PUBLISHED, version);
}

void wh_weights_head_received(uint64_t *words, uint64_t bytes)
{
	word_store(words, HEAD_RECEIVED, bytes);
}

void wh_weights_head_begin(uint64_t *words)
{
	word_store(words, HEAD_BEGUN, le64toh(words[HEAD_BEGUN]) + 1);
}

__attribute__((no_sanitize("thread"))) void wh_weights_pieces_set(uint32_t *pieces, size_t at,
								  uint32_t count)
{
	__atomic_store_n(&pieces[at], htole32(count), __ATOMIC_RELEASE);
}

bool wh_weights_head_decode(const uint64_t *words, uint32_t ids, uint32_t steps,
			    struct wh_weights_head *out)
{
	if (le64toh(words[HEAD_KIND]) != (HEAD_MAGIC << 16 | FORMAT) ||
	    le64toh(words[HEAD_LISTS]) != ((uint64_t)ids << 32 | steps))
		return false;
	memset(out, 0, sizeof(*out));
	out->digest[0] = le64toh(words[HEAD_DIGEST]);
	out->digest[1] = le64toh(words[HEAD_DIGEST + 1]);
	out->published = le64toh(words[HEAD_PUBLISHED]);
	out->received = le64toh(words[HEAD_RECEIVED]);
	out->begun = le64toh(words[HEAD_BEGUN]);
	for (size_t i = 0; i < WH_COPY_SLOTS; i++) {
		uint64_t version = le64toh(words[HEAD_SLOTS + 2 * i]);
		uint64_t check = le64toh(words[HEAD_SLOTS + 2 * i + 1]);

		for (int state = WH_COPY_FILLING; version && state <= WH_COPY_WHOLE; state++)
			if (check == slot_check(version, (enum wh_copy_state)state)) {
				out->slots[i].version = version;
				out->slots[i].state = (enum wh_copy_state)state;
			}
	}
	return true;
}
