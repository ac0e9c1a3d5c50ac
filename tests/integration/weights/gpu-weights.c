/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-weights.c: weights in GPU memory, between processes */
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

static const struct CMUnitTest tests[] = {
	MEMBER_TEST(versions__gpu),
	MEMBER_TEST(versions__gpu_chain),
};

MEMBER_MAIN("gpu-weights", tests)
