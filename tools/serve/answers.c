/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to what wherry copy asks, until they have been read. */
#include "serve/answers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "serve/withdraw.h"
#include "util/clock.h"

#define ANSWERS_MAX 256
#define ANSWERS_BYTES (UINT64_C(256) << 20)
#define ANSWER_IDLE (600 * WH_SECOND)

struct answer {
	struct answer *next;
	uint64_t source; /* request.source */
	uint8_t token[DIR_TOKEN];
	uint8_t *data;
	size_t size;
	struct wh_region *region;
	int64_t made;
	struct leaving leaving;
};

static void answer_add(struct answer_list *list, struct answer *answer)
{
	answer->next = list->first;
	list->first = answer;
	list->count++;
	list->bytes += answer->size;
}

static struct answer *answer_take(struct answer_list *list, struct answer **link)
{
	struct answer *answer = *link;

	*link = answer->next;
	list->count--;
	list->bytes -= answer->size;
	return answer;
}

/* `until`: as of region_leave(). False: it stays where it is. */
static bool answer_free(struct answer_list *list, struct answer **link, int64_t until)
{
	struct answer *answer = *link;

	if (!region_leave(&answer->region, &answer->leaving, until))
		return false;
	answer_take(list, link);
	free(answer->data);
	free(answer);
	return true;
}

/* What all answers of a list have, or those of one address. */
struct share {
	size_t count;
	uint64_t bytes;
};

static struct share share_of(const struct answer_list *list, uint64_t source)
{
	struct share share = { 0 };

	for (const struct answer *answer = list->first; answer; answer = answer->next) {
		if (answer->source != source)
			continue;
		share.count++;
		share.bytes += answer->size;
	}
	return share;
}

/* Do `bytes` more of that address pass its half? Its first answer does not. */
static bool half_is_full(const struct answer_list *list, uint64_t source, uint64_t bytes)
{
	struct share own = share_of(list, source);

	return own.count >= ANSWERS_MAX / 2 || (own.count && own.bytes + bytes > ANSWERS_BYTES / 2);
}

/* Nobody finds it any more. False: too many are still held, and it stays. */
static bool answer_drop(struct answers *answers, struct answer **link)
{
	if (answer_free(&answers->waiting, link, 0))
		return true;
	if (answers->leaving.count >= ANSWERS_MAX || answers->leaving.bytes >= ANSWERS_BYTES ||
	    half_is_full(&answers->leaving, (*link)->source, (*link)->size))
		return false;
	answer_add(&answers->leaving, answer_take(&answers->waiting, link));
	return true;
}

void answers_forget(struct answers *answers, const uint8_t token[DIR_TOKEN])
{
	struct answer **link = &answers->waiting.first;

	while (*link && memcmp((*link)->token, token, DIR_TOKEN) != 0)
		link = &(*link)->next;
	if (*link)
		answer_drop(answers, link);
}

void answers_drop_old(struct answers *answers)
{
	struct answer **link = &answers->waiting.first;
	int64_t now = wh_now();

	while (*link)
		if (now - (*link)->made < ANSWER_IDLE || !answer_drop(answers, link))
			link = &(*link)->next;
}

/* Drop the oldest answer that nobody holds too much of, of one address or of all. */
static bool drop_oldest(struct answers *answers, const uint64_t *source)
{
	struct answer **tried = NULL, **link, **last;

	do {
		last = NULL;
		for (link = &answers->waiting.first; *link && link != tried; link = &(*link)->next)
			if (!source || (*link)->source == *source)
				last = link;
		if (last && answer_drop(answers, last))
			return true;
		tried = last;
	} while (last);
	return false;
}

/* The oldest answers make room, first those of the same address: who asked for them has them by
 * now, or has gone. */
static bool make_room(struct answers *answers, uint64_t source, uint64_t bytes)
{
	const struct answer_list *waiting = &answers->waiting;
	bool room = true;

	while (room && half_is_full(waiting, source, bytes))
		room = drop_oldest(answers, &source);
	while (room && waiting->first &&
	       (waiting->count >= ANSWERS_MAX || waiting->bytes + bytes > ANSWERS_BYTES))
		room = drop_oldest(answers, NULL);
	return room;
}

int answers_publish(struct answers *answers, struct wh_engine *engine, uint64_t source,
		    const uint8_t token[DIR_TOKEN], struct dir_writer *written)
{
	char name[DIR_NAME_ROOM];
	struct wh_region_options options = {
		.size = sizeof(options),
		.name = name,
		.access = WH_ACCESS_READ,
	};
	struct answer *answer;
	int error;

	if (!make_room(answers, source, written->size))
		return -ENOBUFS;
	answer = calloc(1, sizeof(*answer));
	if (!answer)
		return -ENOMEM;
	dir_answer_name(token, name);
	error = wh_region_register(engine, written->data, written->size, &options, &answer->region);
	if (error) {
		free(answer);
		return error;
	}
	answer->source = source;
	memcpy(answer->token, token, DIR_TOKEN);
	answer->data = written->data;
	answer->size = written->size;
	answer->made = wh_now();
	answer_add(&answers->waiting, answer);
	written->data = NULL;
	return 0;
}

int64_t answers_retry(struct answers *answers, bool all, int64_t until, int64_t next)
{
	struct answer **link = &answers->leaving.first;
	int64_t now = wh_now();

	while (*link) {
		const struct leaving *leaving = &(*link)->leaving;

		if ((all || leaving->again <= now) && answer_free(&answers->leaving, link, until))
			continue;
		if (leaving->again < next)
			next = leaving->again;
		link = &(*link)->next;
	}
	return next;
}

void answers_end(struct answers *answers)
{
	while (answers->waiting.first) {
		struct answer **link = &answers->waiting.first;

		if (!answer_free(&answers->waiting, link, 0))
			answer_add(&answers->leaving, answer_take(&answers->waiting, link));
	}
}
