/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds that are told what happens in them: for what chance rarely hits. */
#include <stdio.h>
#include <string.h>

#include "program.h"

static const struct world worlds[] = {
	{ NULL, NULL, NULL },
};

const struct world *worlds_find(const char *name)
{
	for (const struct world *world = worlds; world->name; world++)
		if (strcmp(world->name, name) == 0)
			return world;
	return NULL;
}

void worlds_list(void)
{
	for (const struct world *world = worlds; world->name; world++)
		printf("%-28s %s\n", world->name, world->what);
}

const struct world *worlds_at(int index)
{
	return worlds[index].name ? &worlds[index] : NULL;
}
