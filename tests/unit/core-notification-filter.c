/* SPDX-License-Identifier: Apache-2.0 */
/* core-notification-filter.c: calls that take some notifications only, and many calls at once */
#include "core-notification.h"

static void want_no(const char *sender, uint64_t tag, uint64_t mask)
{
	const struct wh_notification_filter filter = {
		.size = sizeof(filter), .sender = sender, .tag = tag, .tag_mask = mask
	};
	struct wh_notification got = { .size = sizeof(got) };

	assert_int_equal(wh_engine_notification(here, &filter, &got, 0), -EAGAIN);
	assert_int_equal(wh_engine_notification(here, &filter, &got, WH_MS), -EAGAIN);
}

static void filter__by_tag_and_sender(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 6; i++) {
		notify(peer, 0x100 + i, NULL, 0);
		notify(self, 0x200 + i, NULL, 0);
	}
	want_no("sender", 0x200, 0xf00);
	want_no("nobody", 0, 0);
	want_no("send", 0, 0);
	want_no(NULL, 6, UINT64_MAX);
	assert_int_equal(take("receiver", 0, 0, 0), 0x200);
	assert_int_equal(take(NULL, 0x105, UINT64_MAX, 0), 0x105);
	assert_int_equal(take(NULL, 0x001, 0x001, 0), 0x101);
	assert_int_equal(take("sender", 0x002, 0x002, 0), 0x102);
	assert_int_equal(take(NULL, 0x200, 0xf00, 0), 0x201);
	assert_int_equal(take(NULL, UINT64_MAX, 0, 0), 0x100);
	want_no(NULL, 0x102, UINT64_MAX);
	/* The rest, in order. */
	for (uint64_t i = 2; i < 6; i++)
		assert_int_equal(take("receiver", 0, 0, 0), 0x200 + i);
	assert_int_equal(take("sender", 0, 0, 0), 0x103);
	assert_int_equal(take("sender", 0, 0, 0), 0x104);
	assert_false(readable());
}

static void take__too_small_a_buffer(void **state)
{
	char room[4] = "abc";
	struct wh_notification got = { .size = sizeof(got), .buffer = room, .capacity = 3 };
	struct note note;

	(void)state;
	notify(peer, 9, "1234", 4);
	notify(peer, 10, "12", 2);
	for (int i = 0; i < 3; i++) {
		got.length = got.tag = 0;
		assert_int_equal(wh_engine_notification(here, NULL, &got, i ? 0 : PATIENCE),
				 -EMSGSIZE);
		assert_int_equal(got.length, 4);
		assert_int_equal(got.tag, 9);
		assert_string_equal(got.sender, "sender");
		assert_string_equal(room, "abc");
	}
	assert_true(strstr(wh_error_text(), "4 bytes"));
	got.capacity = 4;
	assert_int_equal(wh_engine_notification(here, NULL, &got, 0), 0);
	assert_memory_equal(room, "1234", 4);
	assert_int_equal(note_take(here, &note, 0), 0);
	assert_int_equal(note.tag, 10);
	assert_int_equal(note.length, 2);
	assert_false(readable());
}

/* A thread that waits for one tag, with room for `capacity` bytes. */
struct taker {
	pthread_t thread;
	struct wh_notification_filter filter;
	struct wh_notification got;
	int64_t cpu; /* ns that it has used */
	int error;
	unsigned char bytes[64];
};

static void *taker_run(void *arg)
{
	struct taker *taker = arg;
	struct timespec used;

	taker->error = wh_engine_notification(here, &taker->filter, &taker->got, PATIENCE);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	taker->cpu = used.tv_sec * WH_SECOND + used.tv_nsec;
	return NULL;
}

static void taker_start(struct taker *taker, const char *sender, uint64_t tag, uint64_t mask,
			uint64_t capacity)
{
	*taker = (struct taker){
		.filter = { .size = sizeof(taker->filter),
			    .sender = sender,
			    .tag = tag,
			    .tag_mask = mask },
		.got = { .size = sizeof(taker->got), .buffer = taker->bytes, .capacity = capacity },
	};
	assert_int_equal(pthread_create(&taker->thread, NULL, taker_run, taker), 0);
}

static void taker_end(struct taker *taker, int error, uint64_t tag)
{
	pthread_join(taker->thread, NULL);
	assert_int_equal(taker->error, error);
	assert_int_equal(taker->got.tag, tag);
}

static unsigned takers_waiting(void)
{
	struct wh_inbox *inbox = here->inbox;
	unsigned count = 0;

	pthread_mutex_lock(&inbox->lock);
	for (struct wh_list *l = inbox->waiters.next; l != &inbox->waiters; l = l->next)
		count++;
	pthread_mutex_unlock(&inbox->lock);
	return count;
}

static void await_takers(unsigned want)
{
	while (takers_waiting() != want)
		usleep(100);
}

/* Each waits for a tag of its own, while others' come. */
static void takers__each_its_own(void **state)
{
	enum { TAKERS = 8, ROUNDS = 20 };
	struct taker takers[TAKERS], idle;

	(void)state;
	taker_start(&idle, NULL, 1000, UINT64_MAX, 0);
	for (int round = 0; round < ROUNDS; round++) {
		for (uint64_t i = 0; i < TAKERS; i++)
			taker_start(&takers[i], i % 2 ? "sender" : "receiver", i, 0xff, 8);
		await_takers(TAKERS + 1);
		/* Nobody waits for these. */
		notify(peer, 0, NULL, 0);
		notify(self, 0x201, NULL, 0);
		for (uint64_t i = TAKERS; i--;)
			notify(i % 2 ? peer : self, 0x100 + i, &i, sizeof(i));
		for (uint64_t i = 0; i < TAKERS; i++) {
			taker_end(&takers[i], 0, 0x100 + i);
			assert_int_equal(takers[i].got.length, 8);
			assert_memory_equal(takers[i].bytes, &i, 8);
		}
		assert_int_equal(take("sender", 0, 0, 0), 0);
		assert_int_equal(take("receiver", 0, 0, 0), 0x201);
	}
	assert_false(readable());
	notify(self, 1000, NULL, 0);
	taker_end(&idle, 0, 1000);
	/* It slept through all of the others' notifications. */
	assert_in_range(idle.cpu, 0, 20 * WH_MS);
}

/* Several match the same: each notification goes to one. One with too little room is told only if
 * nobody else takes it. */
static void takers__share(void **state)
{
	struct taker small, first, second;
	struct note note;

	(void)state;
	taker_start(&small, NULL, 0, 0, 1);
	await_takers(1);
	taker_start(&first, NULL, 0, 0, 2);
	await_takers(2);
	taker_start(&second, NULL, 7, UINT64_MAX, 2);
	await_takers(3);
	notify(peer, 7, "ab", 2);
	taker_end(&first, 0, 7);
	notify(peer, 7, "cd", 2);
	taker_end(&second, 0, 7);
	assert_memory_equal(first.bytes, "ab", 2);
	assert_memory_equal(second.bytes, "cd", 2);
	assert_int_equal(takers_waiting(), 1);
	notify(peer, 8, "ef", 2);
	taker_end(&small, -EMSGSIZE, 8);
	assert_int_equal(small.got.length, 2);
	assert_int_equal(note_take(here, &note, 0), 0);
	assert_int_equal(note.tag, 8);
	assert_false(readable());
}

#define TEST_ROOMY(function) cmocka_unit_test_setup_teardown(function, setup_roomy, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_ROOMY(filter__by_tag_and_sender),
		TEST_ROOMY(take__too_small_a_buffer),
		TEST_ROOMY(takers__each_its_own),
		TEST_ROOMY(takers__share),
		cmocka_unit_test_setup_teardown(takers__share, setup_roomy_spinning, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
