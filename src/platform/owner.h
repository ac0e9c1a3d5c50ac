/* SPDX-License-Identifier: Apache-2.0 */
/* The user whose process holds the other end of a connection on this host. */
#ifndef WH_PLATFORM_OWNER_H
#define WH_PLATFORM_OWNER_H

#include <stdbool.h>
#include <sys/types.h>

/* Asks the kernel: both ends are sockets of this host. Does not block. 0; -ENOENT: the other socket
 * is gone; or another errno: the kernel or a sandbox does not allow the query. */
int wh_socket_owner(int fd, uid_t *user);

/* Of a unix socket: does the process at the other end belong to this user, or to root, as numbered
 * in this process's user namespace? Does not block. 0; -EACCES: it belongs to `user`, another one;
 * -EOVERFLOW: to one that this user namespace has no number for, so that all such users look alike;
 * or another errno. */
int wh_unix_owner(int fd, uid_t *user);
/* Does the number stand for one user? False: it is the number of all users that this process's user
 * namespace does not map. */
bool wh_user_is_known(uid_t user);

#endif
