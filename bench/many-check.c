/* SPDX-License-Identifier: Apache-2.0 */
/* Check the memory against what the workers reported about their transfers. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "many.h"

void many_wrong(struct many *many, struct many_life *life, const char *format, ...)
{
	va_list list;

	atomic_fetch_add(&life->wrong, 1);
	if (atomic_exchange(&many->has_text, true))
		return;
	va_start(list, format);
	vsnprintf(many->text, MANY_TEXT, format, list);
	va_end(list);
}

uint64_t many_word(uint32_t engine, uint32_t k, uint32_t number)
{
	return (uint64_t)number << 32 | engine << 8 | k;
}

void many_fill(unsigned char *at, uint32_t bytes, uint64_t word)
{
	for (uint32_t i = 0; i < bytes; i += sizeof(word))
		memcpy(at + i, &word, sizeof(word));
}

bool many_is(const unsigned char *at, uint32_t bytes, uint64_t word)
{
	for (uint32_t i = 0; i < bytes; i += sizeof(word))
		if (memcmp(at + i, &word, sizeof(word)))
			return false;
	return true;
}

/* Check a link's slot, for one life of either engine: each word must come from a write that was
 * submitted, and not from one older than the last that was reported complete. */
static bool audit_slot(struct many *many, uint32_t engine, uint32_t k, uint32_t life,
		       uint32_t target_life)
{
	struct many_link *link = many_link(many, engine, k);
	uint32_t completed = atomic_load(&link->ledger[life][target_life].completed);
	uint32_t submitted = atomic_load(&link->ledger[life][target_life].submitted);
	const unsigned char *slot =
		many_badge(many, link->target, target_life) + many_slot(many, k, life);
	uint64_t word;

	for (uint32_t i = 0; i < many->options.bytes; i += sizeof(word)) {
		memcpy(&word, slot + i, sizeof(word));
		if (word ? word < many_word(engine, k, completed) ||
				    word > many_word(engine, k, submitted) ||
				    (uint32_t)word != (uint32_t)many_word(engine, k, 0) :
			   completed != 0) {
			many_wrong(many, many_life(many, engine, life),
				   "n%u (life %u) wrote %u times to n%u (life %u), of which %u "
				   "were reported "
				   "complete: its memory holds %#llx at %u",
				   engine, life, submitted, link->target, target_life, completed,
				   (unsigned long long)word, i);
			return false;
		}
	}
	return true;
}

/* Transfers in flight when their engine was killed have no end to report; all others have. */
static bool audit_life(struct many *many, uint32_t engine, uint32_t life)
{
	struct many_life *at = many_life(many, engine, life);
	uint64_t ended = atomic_load(&at->completed) + atomic_load(&at->failed);
	uint64_t submitted = atomic_load(&at->submitted);

	if (ended == submitted || (atomic_load(&at->killed) && ended < submitted &&
				   submitted - ended <= many->options.degree))
		return true;
	many_wrong(many, at, "n%u (life %u) submitted %llu transfers, of which %llu have ended",
		   engine, life, (unsigned long long)submitted, (unsigned long long)ended);
	return false;
}

uint64_t many_audit(struct many *many)
{
	uint64_t bad = 0;

	for (uint32_t e = 0; e < many->options.engines; e++)
		for (uint32_t life = 0; life < MANY_LIVES; life++) {
			bad += !audit_life(many, e, life);
			for (uint32_t k = 0; k < many->options.degree; k++)
				for (uint32_t other = 0; other < MANY_LIVES; other++)
					bad += !audit_slot(many, e, k, life, other);
		}
	return bad;
}
