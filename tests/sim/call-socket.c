/* SPDX-License-Identifier: Apache-2.0 */
/* Socket calls, onto the simulated network. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>

#include "calls.h"
#include "world.h"

/* Host n is 10.0.0.n+1 and fd00::n+1. */
#define NET4 (10u << 24)

static struct address address_read(const struct sockaddr *address)
{
	const struct sockaddr_in *in = (const void *)address;
	const struct sockaddr_in6 *in6 = (const void *)address;

	if (address->sa_family == AF_INET6)
		return (struct address){ in6->sin6_addr.s6_addr[15] - 1, ntohs(in6->sin6_port) };
	return (struct address){ (int)(ntohl(in->sin_addr.s_addr) & 255) - 1, ntohs(in->sin_port) };
}

static void address_write(struct sockaddr *out, socklen_t *length, int family, struct address from)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_port = htons(from.port),
				  .sin_addr.s_addr = htonl(NET4 | (uint32_t)(from.host + 1)) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(from.port) };
	socklen_t size = family == AF_INET6 ? sizeof(in6) : sizeof(in);

	if (!out)
		return;
	in6.sin6_addr.s6_addr[0] = 0xfd;
	in6.sin6_addr.s6_addr[15] = (uint8_t)(from.host + 1);
	memcpy(out, family == AF_INET6 ? (void *)&in6 : (void *)&in,
	       *length < size ? *length : size);
	*length = size;
}

/* The socket of a descriptor. NULL: errno is set. */
static struct end *end_of(const char *call, int fd)
{
	struct descriptor *descriptor = descriptor_of(fd);

	call_point(call, (uint64_t)fd);
	if (descriptor && descriptor->end)
		return descriptor->end;
	call_failed(call, fd, descriptor ? ENOTSOCK : EBADF);
	return NULL;
}

int sim_socket(int domain, int type, int protocol)
{
	struct descriptor *descriptor;

	(void)protocol;
	call_point("socket", (uint64_t)domain);
	if (domain == AF_UNIX && (type & 15) == SOCK_STREAM)
		return local_socket(type);
	if ((domain != AF_INET && domain != AF_INET6) || (type & 15) != SOCK_STREAM)
		return (int)call_failed("socket", domain, EAFNOSUPPORT);
	if (node_lacks_descriptors())
		return (int)call_failed("socket", -1, EMFILE);
	descriptor = descriptor_new(&kind_stream);
	descriptor->end = end_new(descriptor->node, domain);
	return (int)call_result("socket", -1, descriptor->fd);
}

int sim_bind(int fd, const struct sockaddr *address, socklen_t length)
{
	struct end *end;

	if (descriptor_is_local(fd))
		return local_bind(fd, address, length);
	end = end_of("bind", fd);
	(void)length;
	if (!end)
		return -1;
	return (int)call_done("bind", fd,
			      end_bind(end, address_read(address).port) ? 0 : -EADDRINUSE);
}

int sim_listen(int fd, int backlog)
{
	struct end *end;

	if (descriptor_is_local(fd))
		return local_listen(fd, backlog);
	end = end_of("listen", fd);
	if (!end)
		return -1;
	end_listen(end, backlog);
	return (int)call_result("listen", fd, 0);
}

int sim_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	struct end *listener, *end;
	struct descriptor *descriptor;

	(void)flags;
	if (descriptor_is_local(fd))
		return local_accept(fd, address, length);
	listener = end_of("accept4", fd);
	if (!listener)
		return -1;
	if (!listener->waiting_count)
		return (int)call_failed("accept4", fd, EAGAIN);
	if (node_lacks_descriptors())
		return (int)call_failed("accept4", fd, sim_chance(800) ? EMFILE : ENOBUFS);
	end = end_accept(listener);
	if (!end)
		return (int)call_failed("accept4", fd, ECONNABORTED);
	sim_counts.accepts++;
	descriptor = descriptor_new(&kind_stream);
	descriptor->end = end;
	address_write(address, length, end->family, end->other);
	return (int)call_result("accept4", fd, descriptor->fd);
}

int sim_connect(int fd, const struct sockaddr *address, socklen_t length)
{
	struct end *end;

	if (descriptor_is_local(fd))
		return local_connect(fd, address, length);
	end = end_of("connect", fd);
	(void)length;
	if (!end)
		return -1;
	sim_counts.connects++;
	if (!node_of(end->node)->alive)
		return (int)call_failed("connect", fd, ENETUNREACH);
	if (sim_chance(sim_options.connect_fails))
		return (int)call_failed("connect", fd,
					sim_chance(500) ? EADDRNOTAVAIL : ENETUNREACH);
	end_connect(end, address_read(address));
	return (int)call_failed("connect", fd, EINPROGRESS);
}

int sim_getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
	struct end *end;

	if (descriptor_is_local(fd))
		return local_name("getsockname", fd, address, length);
	end = end_of("getsockname", fd);
	if (!end)
		return -1;
	address_write(address, length, end->family, end->own);
	return 0;
}

int sim_getpeername(int fd, struct sockaddr *address, socklen_t *length)
{
	struct end *end;

	if (descriptor_is_local(fd))
		return local_name("getpeername", fd, address, length);
	end = end_of("getpeername", fd);
	if (!end)
		return -1;
	if (end->state != END_OPEN || end->reset)
		return (int)call_failed("getpeername", fd, ENOTCONN);
	address_write(address, length, end->family, end->other);
	return 0;
}

int sim_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
	struct end *end;

	if (descriptor_is_local(fd))
		return local_getsockopt(fd, level, name, value, length);
	end = end_of("getsockopt", fd);
	if (!end)
		return -1;
	if (level == SOL_SOCKET && name == SO_ERROR) {
		*(int *)value = end->error;
		end->error = 0;
		return (int)call_result("getsockopt", fd, 0);
	}
	if (level == IPPROTO_TCP && name == TCP_CONGESTION) {
		snprintf(value, *length, "cubic");
		return 0;
	}
	return (int)call_failed("getsockopt", fd, ENOPROTOOPT);
}

int sim_setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
	struct end *end;

	if (descriptor_is_local(fd))
		return local_setsockopt(fd, level, name, value);
	end = end_of("setsockopt", fd);
	(void)length;
	if (!end)
		return -1;
	if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT)
		end->user_timeout = *(const unsigned *)value * SIM_MS;
	else if (level == IPPROTO_TCP && name == TCP_KEEPIDLE)
		end->keepidle = *(const int *)value * SIM_SEC;
	else if (level == SOL_SOCKET && name == SO_KEEPALIVE)
		end_keep_alive(end);
	return 0;
}

int sim_ioctl(int fd, unsigned long request, void *argument)
{
	struct end *end;

	if (descriptor_is_real(fd))
		return ioctl(fd, request, argument);
	end = end_of("ioctl", fd);
	if (!end)
		return -1;
	if (request != SIOCOUTQ)
		return (int)call_failed("ioctl", fd, ENOTTY);
	*(int *)argument = (int)end->pipe;
	return 0;
}

ssize_t sim_send(int fd, const void *bytes, size_t length, int flags)
{
	struct iovec part = { (void *)bytes, length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct end *end;

	if (descriptor_is_local(fd))
		return local_send(fd, &message, flags);
	end = end_of("send", fd);
	return end ? call_done("send", fd, end_write(end, &part, 1)) : -1;
}

ssize_t sim_sendmsg(int fd, const struct msghdr *message, int flags)
{
	struct end *end;

	if (descriptor_is_local(fd))
		return local_send(fd, message, flags);
	end = end_of("sendmsg", fd);
	if (!end)
		return -1;
	return call_done("sendmsg", fd, end_write(end, message->msg_iov, message->msg_iovlen));
}

ssize_t sim_recv(int fd, void *bytes, size_t length, int flags)
{
	struct iovec part = { bytes, length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct end *end;

	if (descriptor_is_local(fd))
		return local_receive(fd, &message, flags);
	end = end_of("recv", fd);
	return end ? call_done("recv", fd, end_read(end, &part, 1, flags & MSG_PEEK)) : -1;
}

ssize_t sim_recvmsg(int fd, struct msghdr *message, int flags)
{
	struct end *end;

	if (descriptor_is_local(fd))
		return local_receive(fd, message, flags);
	end = end_of("recvmsg", fd);
	if (!end)
		return -1;
	return call_done("recvmsg", fd,
			 end_read(end, message->msg_iov, message->msg_iovlen, flags & MSG_PEEK));
}

int sim_shutdown(int fd, int how)
{
	struct end *end;

	if (descriptor_is_local(fd))
		return local_shutdown(fd);
	end = end_of("shutdown", fd);
	if (!end)
		return -1;
	if (end->state == END_FRESH || end->reset)
		return (int)call_failed("shutdown", fd, ENOTCONN);
	end_shut(end, how != SHUT_WR, how != SHUT_RD);
	return (int)call_result("shutdown", fd, 0);
}
