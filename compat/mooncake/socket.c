/* SPDX-License-Identifier: Apache-2.0 */
/* What sockets are set to: as those between Wherry's engines (net/control.c), but for their size.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include "compat/mooncake/mooncake.h"
#include "rendezvous/rendezvous.h"

/* On loopback. Mooncake's engines send and take 64 KiB at a time; the system's buffers grow to
 * megabytes, and what waits there has left the CPU's caches before it is copied out again. In half
 * of this the window has at times no room for the next 64 KiB. */
#define NEAR_BUFFER (256 << 10)

void wh_mooncake_socket_tune(int fd, const struct sockaddr_storage *peer)
{
	/* every kernel has it, and lets everybody choose it */
	static const char plain[] = "reno";
	char name[16] = "";
	socklen_t length = sizeof(name) - 1;
	int one = 1, bytes = NEAR_BUFFER;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!wh_address_is_loopback(peer))
		return;
	/* bbr paces by timers what has no way to go. */
	if (!getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) && !strncmp(name, "bbr", 3))
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plain, sizeof(plain) - 1);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}
