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

/* Nobody finds it any more. False: too many are still held, and it stays. */
static bool answer_drop(struct answers *answers, struct answer **link)
{
	if (answer_free(&answers->waiting, link, 0))
		return true;
	if (answers->leaving.count >= ANSWERS_MAX || answers->leaving.bytes >= ANSWERS_BYTES)
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

/* The oldest answers make room: who asked for them has them by now, or has gone. */
static bool make_room(struct answers *answers, uint64_t bytes)
{
	while (answers->waiting.first && (answers->waiting.count >= ANSWERS_MAX ||
					  answers->waiting.bytes + bytes > ANSWERS_BYTES)) {
		struct answer **link = &answers->waiting.first;

		while ((*link)->next)
			link = &(*link)->next;
		if (!answer_drop(answers, link))
			return false;
	}
	return true;
}

int answers_publish(struct answers *answers, struct wh_engine *engine,
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

	if (!make_room(answers, written->size))
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
