/* SPDX-License-Identifier: Apache-2.0 */
/* The user whose process holds the other end of a TCP connection over loopback. */
#ifndef WH_PLATFORM_OWNER_H
#define WH_PLATFORM_OWNER_H

#include <sys/types.h>

/* Asks the kernel: both ends are sockets of this host. Does not block. 0; -ENOENT: the other socket
 * is gone; or another errno: the kernel or a sandbox does not allow the query. */
int wh_socket_owner(int fd, uid_t *user);

#endif
