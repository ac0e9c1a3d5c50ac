/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu weights */
/* gpu-weights.c: weights in GPU memory, between processes */
#include "lib/gpu.h"
#include "lib/member.h"

static const struct model on_gpus = { .sources = 2,
				      .targets = 2,
				      .wants = WANTS_COLUMNS,
				      .kind = WH_MEMORY_VMM,
				      .rows = 64,
				      .columns = 8 * KIB,
				      .piece = 64 * KIB,
				      .chunk = 256 * KIB };

static void versions__gpu(void **state)
{
	(void)state;
	group_versions(&on_gpus);
}

/* Handed on from GPU to GPU. */
static void versions__gpu_chain(void **state)
{
	struct model model = on_gpus;

	(void)state;
	model.sources = 1;
	model.wants = WANTS_ALL;
	model.separate_hosts = true;
	model.kind = WH_MEMORY_DEVICE;
	group_versions(&model);
}

/* A target reads its columns of two sources' rows, in four parts of four pieces each, and the small
 * tensor. What is read together from a source is one launch, not one for each piece or part; or
 * none, if copy engines are faster. */
static void launches__of_a_version(void **state)
{
	struct member_answer before, after;
	struct model model = on_gpus;
	struct member *target;
	struct group group;

	(void)state;
	model.rows = 4096;
	model.columns = 2 * KIB;
	model.chunk = 512 * KIB;
	model.piece = 128 * KIB;
	group_start(&group, &model, true);
	target = group_target(&group, 0);
	group_pass(&group, 1); /* which also measures what launches and copies cost */
	for (uint64_t version = 2; version <= 4; version++) {
		assert_int_equal(member_call(target, MEMBER_LAUNCHES, 0, 0, &before), 0);
		group_pass(&group, version);
		assert_int_equal(member_call(target, MEMBER_LAUNCHES, 0, 0, &after), 0);
		assert_in_range(after.value - before.value, 0, 3);
	}
	group_end(&group);
}

static const struct CMUnitTest tests[] = {
	MEMBER_TEST(versions__gpu),
	MEMBER_TEST(versions__gpu_chain),
	MEMBER_TEST_NEEDS(launches__of_a_version, needs_fake),
};

MEMBER_MAIN("gpu-weights", tests)
