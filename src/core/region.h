/* SPDX-License-Identifier: Apache-2.0 */
/* Local regions: memory of this engine that is registered for transfers and published to peers. */
#ifndef WH_CORE_REGION_H
#define WH_CORE_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/region.h"
#include "transport/core.h"

struct wh_engine;
struct wh_region_record;

/* What a call that registers a region asks for, checked and copied. */
struct wh_region_request {
	struct wh_region_options options;
	struct wh_rights *rights; /* NULL: all peers have the same */
	char *name; /* NULL: none */
	uint8_t access; /* the union over all peers */
};

/* Copy and check the options of the public function `call`. 0, -EINVAL, -E2BIG or -ENOMEM; then
 * there is nothing to drop. */
int wh_region_request_parse(struct wh_region_request *request,
			    const struct wh_region_options *given, const char *call);
void wh_region_request_drop(struct wh_region_request *request);
/* Add the region and publish it. Takes the request and the registration, on error as well; `begun`
 * is when registering began. 0, -EEXIST or -ENOMEM. */
int wh_region_add(struct wh_engine *engine, struct wh_region_request *request,
		  struct wh_registration *registration, int64_t begun, struct wh_region **out);
/* 1 to WH_NAME_MAX - 1 of A-Z a-z 0-9 . _ - */
bool wh_region_name_is_valid(const char *name);
/* Regions of files that wh_region_unregister() has withdrawn, while a peer's request still waits
 * for the file system. How many; of the first, the file's name, if `name` is not NULL. Under
 * engine.lock. */
uint32_t wh_regions_leaving(struct wh_engine *engine, const char **name);
/* For wh_engine_close(): have the transports forget these, and when nobody uses them any more, free
 * them. */
void wh_regions_leave_transports(struct wh_engine *engine);
void wh_regions_free_leaving(struct wh_engine *engine);
/* Fill the record that describes the region to peers; access is entry.access. */
void wh_region_record(const struct wh_region *region, struct wh_region_record *record);
/* May the peer of this name list the region? */
bool wh_region_is_listed(const struct wh_region *region, const char *name);

#endif
