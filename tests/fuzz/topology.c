/* SPDX-License-Identifier: Apache-2.0 */
/* A saved topology: what is taken is worked through in every way, and is the same when it is saved
 * again. */
#include "../../tools/field.c"
#include "../../tools/output.c"
#include "../../tools/topo/json.c"
#include "../../tools/topo/text.c"

#include "fuzz.h"

int fail(int error, const char *format, ...)
{
	(void)format;
	return error;
}

const char *screen_tint(const struct screen *screen, enum tint tint)
{
	(void)tint;
	return screen->color ? "<" : "";
}

const char *screen_plain(const struct screen *screen)
{
	return screen->color ? ">" : "";
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *object = json_loadb((const char *)data, size, 0, NULL), *first, *second;
	struct wh_topology *topology, *back;
	char why[128];

	topology = object ? topo_from_json(object, why, sizeof(why)) : NULL;
	json_decref(object);
	/* The matrix grows with the square of this. */
	if (topology && topology->gpu_count + topology->nic_count + topology->node_count < 40) {
		first = topo_to_json(topology);
		back = topo_from_json(first, why, sizeof(why));
		check(back);
		second = topo_to_json(back);
		check(json_equal(first, second));
		json_decref(first);
		json_decref(second);
		wh_topology_free(back);
	}
	wh_topology_free(topology);
	return 0;
}
