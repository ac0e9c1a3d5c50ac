/* SPDX-License-Identifier: Apache-2.0 */
/* Socket options: those of Wherry's own connections (net/control.c), but smaller buffers on
 * loopback. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "compat/mooncake/mooncake.h"
#include "util/address.h"

/* Bytes of a buffer on loopback. Mooncake's engines send and receive 64 KiB at a time. The kernel's
 * automatic buffers grow to megabytes, so that bytes leave the CPU's caches before they are copied
 * out again. With half of this size the TCP window sometimes has no room for the next 64 KiB. */
#define LOOPBACK_BUFFER (256 << 10)

void wh_mooncake_socket_close(int fd)
{
	shutdown(fd, SHUT_RDWR);
	close(fd);
}

void wh_mooncake_socket_tune(int fd, const struct sockaddr_storage *peer)
{
	/* Every kernel has this congestion control, and selecting it needs no privilege. */
	static const char plain[] = "reno";
	char name[16] = "";
	socklen_t length = sizeof(name) - 1;
	int one = 1, bytes = LOOPBACK_BUFFER;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!wh_address_is_loopback(peer))
		return;
	/* bbr paces by timers, also on loopback, where there is nothing to pace. */
	if (!getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) && !strncmp(name, "bbr", 3))
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plain, sizeof(plain) - 1);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}
