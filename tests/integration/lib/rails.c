/* SPDX-License-Identifier: Apache-2.0 */
/* See rails.h. */
#include "rails.h"

void rails_fake_nics(void)
{
	setenv("FAKE_VERBS", "fake0,fake1,fake2,fake3,fake4,fake5,fake6,fake7", 1);
}

void rails_fixture_with(struct fixture *f, const char *ours, const char *theirs, const char *more)
{
	char mine[80], others[80];
	const char *const config[] = { "transports=rdma,tcp", "timeout=2000", mine, more, NULL };
	const struct child_options options = { .config = { "transports=rdma,tcp", "timeout=5000",
							   others } };

	rails_fake_nics();
	snprintf(mine, sizeof(mine), "rdma=%s", ours);
	snprintf(others, sizeof(others), "rdma=%s", theirs);
	fixture_open_with(f, &needs_nics, RAILS_LENGTH, config, &options);
}

void rails_fixture(struct fixture *f, const char *ours, const char *theirs)
{
	rails_fixture_with(f, ours, theirs, NULL);
}

void want_all_by(struct wh_batch *batch, const char *transport)
{
	want_by(batch, transport, RAILS_LENGTH);
}

struct wh_batch *rails_batch(struct fixture *f, uint32_t op)
{
	struct wh_transfer transfer = transfer_of(f, op, 0, 0, RAILS_LENGTH);

	return batch_of(f, &transfer, 1);
}

void rails_fill(struct fixture *f, uint32_t op, uint64_t seed)
{
	if (op == WH_WRITE)
		pattern_fill(f->local, RAILS_LENGTH, 0, seed);
	else
		target_fill(f, 0, RAILS_LENGTH, 0, seed);
}

void want_rails_bytes(struct fixture *f, uint32_t op, uint64_t seed)
{
	uint64_t wrong = op == WH_WRITE ? target_check(f, 0, RAILS_LENGTH, 0, seed) :
					  pattern_check(f->local, RAILS_LENGTH, 0, seed);

	want_true(wrong == PATTERN_GOOD, "the byte at %llu is wrong", (unsigned long long)wrong);
}

void rails_run(struct fixture *f, struct wh_batch *batch, uint32_t op, uint64_t seed)
{
	rails_fill(f, op, seed);
	want(0, batch_run(batch));
	want_rails_bytes(f, op, seed);
}

void rails_run_counted(struct wh_batch *batch, uint64_t by[RAILS_COUNT])
{
	uint64_t before[RAILS_COUNT];

	for (unsigned i = 0; i < RAILS_COUNT; i++)
		before[i] = nic_moved(i);
	want(0, batch_run(batch));
	for (unsigned i = 0; i < RAILS_COUNT; i++)
		by[i] = nic_moved(i) - before[i];
}

void want_rails_used(struct wh_batch *batch, unsigned rails_wanted)
{
	int64_t end = now() + 3 * PATIENCE;
	uint64_t by[RAILS_COUNT];
	unsigned used;

	do {
		used = 0;
		rails_run_counted(batch, by);
		for (unsigned i = 0; i < RAILS_COUNT; i++)
			used += by[i] > 0;
		want_true(now() < end, "%u rails, not %u:\n%s", used, rails_wanted,
			  explained(batch));
	} while (used != rails_wanted);
}
