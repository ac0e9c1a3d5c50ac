/* SPDX-License-Identifier: Apache-2.0 */
/* explain.c: routes, texts of any room, bytes done, and what estimates are put together of */
#include "core-fake.h"

#include "allocation.h"
#include "core/notification.h"

static char text[4096];

static int explain(struct wh_batch *batch)
{
	return wh_batch_explain(batch, text, sizeof(text));
}

static void contains(const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not in \"%s\"", part, text);
}

/* Two fragments: of rdma to `there`, of shm to `here`. */
static struct wh_batch *batch_by_two(void)
{
	struct wh_batch *batch = batch_of(100);
	struct wh_transfer transfer = transfer_of(WH_WRITE, 300, 20);

	RDMA->only = wh_region_id(there);
	transfer.remote = wh_region_id(here);
	assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
	return batch;
}

static void routes__room(void **state)
{
	struct wh_batch *batch = batch_by_two();
	struct wh_route routes[2];
	size_t count = 0;

	(void)state;
	assert_int_equal(wh_batch_routes(NULL, routes, &count), -EINVAL);
	assert_int_equal(wh_batch_routes(batch, routes, NULL), -EINVAL);
	assert_int_equal(wh_batch_routes(batch, NULL, &count), -ENOSPC);
	assert_int_equal(count, 2);
	count = 1;
	assert_int_equal(wh_batch_routes(batch, NULL, &count), -EINVAL);
	assert_int_equal(wh_batch_routes(batch, routes, &count), -ENOSPC);
	assert_int_equal(count, 2);
	snprintf(RDMA->says.how, sizeof(RDMA->says.how), "two rails");
	assert_int_equal(wh_batch_routes(batch, routes, &count), 0);
	assert_string_equal(routes[0].transport, "rdma");
	assert_string_equal(routes[0].detail, "two rails");
	assert_string_equal(routes[0].refused, "not this region");
	assert_int_equal(routes[0].bytes, 100);
	assert_string_equal(routes[1].transport, "shm");
	assert_int_equal(routes[1].bytes, 20);
	assert_int_equal(routes[1].transfers, 1);
	assert_int_equal(RDMA->submitted, 0);
	drop_batch(batch);
}

/* A batch that no transport takes has reasons; one whose region is gone has none. */
static void routes__of_what_cannot_go(void **state)
{
	struct wh_batch *batch = batch_of(8);
	struct wh_route routes[WH_TRANSPORT_COUNT];
	size_t count = WH_TRANSPORT_COUNT;
	struct wh_estimate estimate = { .size = sizeof(estimate) };

	(void)state;
	RDMA->reach = SHM->reach = TCP->reach = -EOPNOTSUPP;
	RDMA->why = SHM->why = TCP->why = "cut";
	assert_int_equal(wh_batch_routes(batch, routes, &count), 0);
	assert_int_equal(count, 3);
	assert_int_equal(routes[2].bytes, 0);
	assert_int_equal(wh_batch_estimate(batch, &estimate), -EOPNOTSUPP);
	RDMA->reach = -ESTALE;
	assert_int_equal(wh_batch_routes(batch, routes, &count), -ESTALE);
	drop_batch(batch);
}

/* The length is of all of it, whatever the room is, and no byte is written behind that. */
static void explain__room(void **state)
{
	struct wh_batch *batch = batch_by_two();
	char *whole, *part;
	int length;

	(void)state;
	snprintf(RDMA->says.parts, sizeof(RDMA->says.parts), "  rail 0\n  rail 1\n");
	snprintf(SHM->says.memory, sizeof(SHM->says.memory), "memory: mapped");
	snprintf(TCP->says.memory, sizeof(TCP->says.memory), "memory: not used");
	snprintf(RDMA->says.sharing, sizeof(RDMA->says.sharing), "shared with others");
	assert_int_equal(wh_batch_explain(batch, NULL, 1), -EINVAL);
	length = wh_batch_explain(batch, NULL, 0);
	assert_int_equal(explain(batch), length);
	assert_int_equal(strlen(text), length);
	contains("rdma: 100 bytes in 1 transfers, partly refused: not this region\n  rail 0\n  "
		 "rail 1\n");
	contains("shm: 20 bytes in 1 transfers\n");
	contains("memory: mapped\n");
	contains("warning: shared with others\n");
	assert_null(strstr(text, "not used"));
	assert_null(strstr(text, "notification"));
	whole = (char *)exact_copy(text, (size_t)length + 1);
	for (size_t room = 1; room <= (size_t)length + 1; room++) {
		part = malloc(room);
		assert_int_equal(wh_batch_explain(batch, part, room), length);
		assert_int_equal(strlen(part), room - 1);
		assert_memory_equal(part, whole, room - 1);
		free(part);
	}
	free(whole);
	allocation_fails = 1;
	assert_int_equal(explain(batch), -ENOMEM);
	drop_batch(batch);
}

static void explain__notification(void **state)
{
	struct wh_batch *batch = batch_of(8);

	(void)state;
	atomic_store(&batch->notify_path, WH_NOTIFY_CONTROL);
	assert_true(explain(batch) > 0);
	contains("notification: over the control connection\n");
	atomic_store(&batch->notify_path, WH_NOTIFY_TRANSPORT);
	atomic_store(&batch->notify_by, WH_TRANSPORT_RDMA);
	assert_true(explain(batch) > 0);
	contains("notification: by rdma\n");
	atomic_store(&batch->notify_path, WH_NOTIFY_TRANSPORT_EARLY);
	assert_true(explain(batch) > 0);
	contains("notification: by rdma, right behind the bytes\n");
	drop_batch(batch);
}

static void progress__bytes(void **state)
{
	struct wh_batch *batch = batch_by_two();
	uint64_t bytes = 1;

	(void)state;
	assert_int_equal(wh_batch_progress(batch, &bytes), -EINVAL);
	said("never submitted");
	assert_int_equal(wh_batch_progress(batch, NULL), -EINVAL);
	assert_int_equal(wh_batch_progress(NULL, &bytes), -EINVAL);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_progress(batch, &bytes), 0);
	assert_int_equal(bytes, 0);
	atomic_store(&RDMA->held[0]->left, 30);
	assert_int_equal(wh_batch_progress(batch, &bytes), 0);
	assert_int_equal(bytes, 70);
	/* One that counts bytes twice has done no more than none. */
	atomic_store(&RDMA->held[0]->left, 101);
	assert_int_equal(wh_batch_progress(batch, &bytes), 0);
	assert_int_equal(bytes, 0);
	fake_end(SHM, 0);
	assert_int_equal(wh_batch_progress(batch, &bytes), 0);
	assert_int_equal(bytes, 20);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_progress(batch, &bytes), 0);
	assert_int_equal(bytes, 120);
	drop_batch(batch);
}

static struct wh_estimate estimate(struct wh_batch *batch)
{
	struct wh_estimate out = { .size = sizeof(out) };

	assert_int_equal(wh_batch_estimate(batch, &out), 0);
	return out;
}

static void costs(struct fake *fake, uint64_t duration, uint32_t measured, uint64_t age)
{
	fake->costs =
		(struct wh_estimate){ .duration = duration, .measured = measured, .age = age };
}

/* An estimate is as good as its worst part. */
static void estimate__of_parts(void **state)
{
	struct wh_batch *batch = batch_by_two();
	struct wh_estimate out;

	(void)state;
	out = estimate(batch);
	assert_int_equal(out.bytes, 120);
	assert_int_equal(out.transfers, 2);
	assert_int_equal(out.duration, 0);
	assert_int_equal(out.measured, WH_ESTIMATE_TYPICAL);
	costs(RDMA, 100, WH_ESTIMATE_MEASURED, 5);
	out = estimate(batch);
	assert_int_equal(out.duration, 0); /* not known for shm */
	assert_int_equal(out.age, 0);
	costs(SHM, 40, WH_ESTIMATE_MEASURED, 7);
	out = estimate(batch);
	assert_int_equal(out.duration, 140);
	assert_int_equal(out.age, 7);
	assert_int_equal(out.measured, WH_ESTIMATE_MEASURED);
	costs(SHM, 40, WH_ESTIMATE_TRAFFIC, 3);
	assert_int_equal(estimate(batch).measured, WH_ESTIMATE_TRAFFIC);
	assert_true(explain(batch) > 0);
	contains("expected: 0.1 us, measured by traffic 0 s ago\n");
	costs(RDMA, 100, WH_ESTIMATE_TYPICAL, 0);
	assert_int_equal(estimate(batch).measured, WH_ESTIMATE_TYPICAL);
	costs(RDMA, 100, WH_ESTIMATE_TRAFFIC, 0);
	costs(SHM, 40, WH_ESTIMATE_TYPICAL, 2 * WH_SECOND);
	assert_int_equal(estimate(batch).measured, WH_ESTIMATE_TYPICAL);
	assert_true(explain(batch) > 0);
	contains("measured in part 2 s ago\n");
	assert_int_equal(wh_batch_estimate(batch, NULL), -EINVAL);
	drop_batch(batch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(routes__room),    TEST(routes__of_what_cannot_go),
		TEST(explain__room),   TEST(explain__notification),
		TEST(progress__bytes), TEST(estimate__of_parts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
