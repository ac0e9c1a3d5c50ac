/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds that are told what happens in them: for what chance rarely hits. */
#include <stdio.h>
#include <string.h>

#include "scene.h"

static const struct world *const subjects[] = { worlds_connection, worlds_still,  worlds_note,
						worlds_disk,       worlds_shared, worlds_weights,
						worlds_members,    worlds_folder, worlds_withdrawn,
						worlds_dropin };

#define SUBJECTS ((int)(sizeof(subjects) / sizeof(*subjects)))

const struct world *worlds_at(int index)
{
	for (int i = 0; i < SUBJECTS; i++)
		for (const struct world *world = subjects[i]; world->name; world++)
			if (!index--)
				return world;
	return NULL;
}

const struct world *worlds_find(const char *name)
{
	const struct world *world;

	for (int i = 0; (world = worlds_at(i)); i++)
		if (strcmp(world->name, name) == 0)
			return world;
	return NULL;
}

void worlds_list(void)
{
	const struct world *world;

	for (int i = 0; (world = worlds_at(i)); i++)
		printf("%-24s %s\n", world->name, world->what);
}
