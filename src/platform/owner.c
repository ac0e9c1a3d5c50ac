/* SPDX-License-Identifier: Apache-2.0 */
/* Asking the kernel for the user of a connection's other end: over loopback by NETLINK_SOCK_DIAG,
 * of a unix socket by SO_PEERCRED. */
#include "platform/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct question {
	struct nlmsghdr header;
	struct inet_diag_req_v2 request;
};

union answer {
	struct nlmsghdr header;
	char room[1024];
};

/* Describe the other socket: its source is our peer's address, its destination is ours. */
static int request_set_ends(int fd, struct inet_diag_req_v2 *request)
{
	struct sockaddr_storage ends[2];
	struct sockaddr_in *v4;
	struct sockaddr_in6 *v6;
	socklen_t length = sizeof(ends[0]);

	if (getpeername(fd, (struct sockaddr *)&ends[0], &length))
		return -errno;
	length = sizeof(ends[1]);
	if (getsockname(fd, (struct sockaddr *)&ends[1], &length))
		return -errno;
	for (int i = 0; i < 2; i++) {
		v4 = (struct sockaddr_in *)&ends[i];
		v6 = (struct sockaddr_in6 *)&ends[i];
		/* sin_port and sin6_port have the same offset. */
		*(i ? &request->id.idiag_dport : &request->id.idiag_sport) = v4->sin_port;
		if (ends[i].ss_family == AF_INET)
			memcpy(i ? request->id.idiag_dst : request->id.idiag_src, &v4->sin_addr, 4);
		else
			memcpy(i ? request->id.idiag_dst : request->id.idiag_src, &v6->sin6_addr,
			       16);
	}
	request->sdiag_family = (uint8_t)ends[0].ss_family;
	return 0;
}

/* The kernel answers during send(), so the answer is there at once. */
static int owner_query(int netlink, const struct question *question, uid_t *user)
{
	union answer answer;
	ssize_t got;

	if (send(netlink, question, sizeof(*question), 0) != sizeof(*question))
		return -errno;
	got = recv(netlink, &answer, sizeof(answer), MSG_DONTWAIT);
	if (got < 0)
		return -errno;
	if (!NLMSG_OK(&answer.header, (size_t)got))
		return -EBADMSG;
	if (answer.header.nlmsg_type == NLMSG_ERROR &&
	    answer.header.nlmsg_len >= NLMSG_LENGTH(sizeof(int)))
		return *(const int *)NLMSG_DATA(&answer.header);
	if (answer.header.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
	    answer.header.nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
		return -EBADMSG;
	*user = ((const struct inet_diag_msg *)NLMSG_DATA(&answer.header))->idiag_uid;
	return 0;
}

int wh_socket_owner(int fd, uid_t *user)
{
	struct question question = {
		.header = {
			.nlmsg_len = sizeof(question),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST,
		},
		.request = {
			.sdiag_protocol = IPPROTO_TCP,
			.idiag_states = UINT32_MAX,
			.id.idiag_cookie = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE },
		},
	};
	int netlink, error = request_set_ends(fd, &question.request);

	if (error)
		return error;
	netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	if (netlink < 0)
		return -errno;
	error = owner_query(netlink, &question, user);
	close(netlink);
	return error;
}

/* ---- unix sockets --------------------------------------------------------------------------- */

/* Read a small file of /proc. False: it cannot be read. */
static bool proc_read(const char *path, char *out, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd >= 0 ? read(fd, out, size - 1) : -1;

	if (fd >= 0)
		close(fd);
	if (got <= 0)
		return false;
	out[got] = 0;
	return true;
}

bool wh_user_is_known(uid_t user)
{
	char text[128];
	unsigned inside, outside, count;
	unsigned long overflow = 65534; /* the kernel's default */

	if (proc_read("/proc/sys/kernel/overflowuid", text, sizeof(text)))
		overflow = strtoul(text, NULL, 10);
	if (user != overflow)
		return true;
	/* Where every user has a number, it is that of the user "nobody". */
	return proc_read("/proc/self/uid_map", text, sizeof(text)) &&
	       sscanf(text, "%u %u %u", &inside, &outside, &count) == 3 && !inside &&
	       count == UINT32_MAX;
}

int wh_unix_owner(int fd, uid_t *user)
{
	struct ucred other;
	socklen_t length = sizeof(other);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &length))
		return -errno;
	*user = other.uid;
	if (!wh_user_is_known(other.uid))
		return -EOVERFLOW;
	return other.uid == geteuid() || other.uid == 0 ? 0 : -EACCES;
}
