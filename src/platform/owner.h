/* SPDX-License-Identifier: Apache-2.0 */
/* Whose process holds the other end of a TCP connection over loopback. */
#ifndef WH_PLATFORM_OWNER_H
#define WH_PLATFORM_OWNER_H

#include <sys/types.h>

/* As the kernel has it (NETLINK_SOCK_DIAG), for both ends are sockets of this host. 0; -ENOENT:
 * there is no such socket any more; or another errno: the kernel, or a sandbox, does not tell. */
int wh_socket_owner(int fd, uid_t *user);

#endif
