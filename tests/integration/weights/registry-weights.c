/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: registry command bench-many weights waits */
/* registry-weights.c: members that find each other by name */
#include "lib/member.h"
#include "lib/server.h"

static void versions__by_name(void **state)
{
	struct model model = { .sources = 1,
			       .targets = 2,
			       .wants = WANTS_ALL,
			       .by_name = true,
			       .rows = 16,
			       .columns = 16 * KIB,
			       .piece = 64 * KIB };
	static struct server server;

	(void)state;
	server_start(&server, &server_wherry, NULL);
	model.config[0] = server.setting;
	group_versions(&model);
	server_stop(&server);
}

static int registry_end(void **state)
{
	group_kill();
	return server_end(state);
}

static const struct CMUnitTest tests[] = {
	{ "versions__by_name", versions__by_name, harness_begin, registry_end,
	  (void *)&server_wherry },
};

MEMBER_MAIN("registry-weights", tests)
