/* SPDX-License-Identifier: Apache-2.0 */
/* Where wherry serve --weights connects to answer a message, which says so itself: it could name
 * the address of anybody. */
#ifndef TOOLS_SERVE_REPLY_H
#define TOOLS_SERVE_REPLY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* The address of wherry://ADDRESS:PORT. False: it is none. Engines say theirs so; to look up a name
 * that somebody sends could take long, and asks others. */
bool reply_address(const char *url, struct sockaddr_storage *out);

/* Is it where the request came from, `source` (wh_notification.source)? All addresses of this host
 * are one place, as it reaches itself by any of them. */
bool reply_is_back(const struct sockaddr_storage *address, uint64_t source);

#endif
