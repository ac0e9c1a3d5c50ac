/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connection info: the text that an agent gives to others through NIXL, so that they reach it.
 *
 *     <what UCX takes for an address>1\n
 *     name=<engine's name>\n
 *     epoch=<16 hex digits>\n
 *     host=<boot id and network namespace>\n
 *     url=wherry://ADDRESS:PORT\n        (one line for each address, best first)
 *
 * Lines with other names are left out, so that a later version can add some.
 *
 * An agent with NIXL's own UCX gets this info where the plug-in has taken UCX's name. UCX checks
 * little of an address, and ends the process at one of an unknown version. So the info begins with
 * an address of its first version that has no transports: UCX finds none in common with its own,
 * and returns an error that names the owner of the address: Wherry.
 */
#ifndef WH_COMPAT_NIXL_INFO_H
#define WH_COMPAT_NIXL_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WH_NIXL_INFO_BEGIN 266 /* bytes of the address */
#define WH_NIXL_INFO_URLS 8
#define WH_NIXL_INFO_MAX 2048 /* bytes of the text, with a NUL */

struct wh_nixl_info {
	char name[64];
	uint64_t epoch;
	char host[64];
	unsigned url_count;
	char url[WH_NIXL_INFO_URLS][80];
};

/* Fill `info` for an engine: its name, epoch and URL. A URL of all addresses becomes one of each
 * address of this host, loopback last. Returns 0, or -errno with the reason in wh_error_text() or
 * strerror(). */
struct wh_engine;
int wh_nixl_info_of(const struct wh_engine *engine, struct wh_nixl_info *info);

/* The identity of this host and network namespace. */
void wh_nixl_info_host(char out[64]);

/* Is it of an engine of this host and network namespace, which loopback reaches? */
bool wh_nixl_info_is_near(const struct wh_nixl_info *info);

/* Write the address with which the text begins. */
void wh_nixl_info_begin(char out[WH_NIXL_INFO_BEGIN]);

/* Write the text. Returns its length without the NUL, less than WH_NIXL_INFO_MAX. */
size_t wh_nixl_info_encode(const struct wh_nixl_info *info, char out[WH_NIXL_INFO_MAX]);

/* Read the text, which comes from outside. 0; -EPROTO: it is no connection info of this plug-in;
 * -EPROTONOSUPPORT: of a later version that this one cannot read; -EBADMSG: a line is wrong or
 * missing. */
int wh_nixl_info_decode(const char *text, size_t length, struct wh_nixl_info *info);

#endif
