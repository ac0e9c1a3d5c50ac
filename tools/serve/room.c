/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/room.h"

#include <errno.h>

#define DESCRIPTORS_OF_FILE 2 /* the server's, and that of the region */

void room_fit(uint64_t descriptors, struct room *out)
{
	uint64_t files = (descriptors - descriptors / 4) / DESCRIPTORS_OF_FILE;

	out->all = files > ROOM_FILES ? ROOM_FILES : files < 4 ? 4 : (size_t)files;
	out->of_source = out->all / 2;
	out->of_client = out->all / 4;
}

int room_check(const struct room *most, const struct room *open)
{
	return open->all < most->all && open->of_source < most->of_source &&
			       open->of_client < most->of_client ?
		       0 :
		       -EMFILE;
}
