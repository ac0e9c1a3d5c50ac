/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process shares with the engine that --peer names. Its WELCOME says which machine it is
 * on, before either side proves a key; then this process looks for it as an engine would, in a
 * folder that both mount, and asks the kernel who is at the other end. Nothing else is sent.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "doctor/doctor.h"
#include "net/meet.h"
#include "platform/machine.h"
#include "platform/owner.h"
#include "rendezvous/rendezvous.h"
#include "url.h"
#include "util/address.h"
#include "wire/wire.h"

#define SECONDS 1 /* for each step */

static void socket_bound(int fd)
{
	struct timeval patience = { .tv_sec = SECONDS };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

/* Receive exactly `length` bytes. 0 or a negative errno. */
static int socket_receive(int fd, void *out, size_t length)
{
	ssize_t got = recv(fd, out, length, MSG_WAITALL);

	if (got < 0)
		return errno == EAGAIN ? -ETIMEDOUT : -errno;
	return (size_t)got == length ? 0 : -ECONNRESET;
}

/* Say HELLO and receive WELCOME. 0, or a negative errno with `why`. */
static int peer_welcome(int fd, struct wh_hello *welcome, char why[WH_REFUSAL_MAX])
{
	struct wh_hello hello = { .version_min = WH_WIRE_VERSION,
				  .version_max = WH_WIRE_VERSION,
				  .role = WH_ROLE_CONTROL,
				  .epoch = 1,
				  .name = "doctor",
				  .auth_length = WH_NONCE_SIZE };
	uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX];
	struct wh_frame frame = { .type = WH_FRAME_HELLO };
	int error = -EIO, refused;

	if (getrandom(hello.auth, WH_NONCE_SIZE, 0) == WH_NONCE_SIZE) {
		frame.length = (uint32_t)wh_hello_encode(bytes + WH_FRAME_HEADER, &hello);
		wh_frame_encode(bytes, &frame);
		error = send(fd, bytes, WH_FRAME_HEADER + frame.length, MSG_NOSIGNAL) < 0 ? -errno :
											    0;
	}
	if (!error)
		error = socket_receive(fd, bytes, WH_FRAME_HEADER);
	if (!error)
		error = wh_frame_decode(bytes, &frame);
	if (!error && frame.length > WH_HELLO_MAX)
		error = -EPROTO;
	if (!error)
		error = socket_receive(fd, bytes, frame.length);
	if (!error && frame.type == WH_FRAME_REFUSED &&
	    !wh_refusal_decode(bytes, frame.length, &refused, why))
		return -refused;
	if (!error)
		error = frame.type == WH_FRAME_WELCOME ?
				wh_hello_decode(bytes, frame.length, welcome) :
				-EPROTO;
	if (error)
		snprintf(why, WH_REFUSAL_MAX, "%s", strerror(-error));
	return error;
}

/* Connect to the engine's address, or to the first of them that answers. A descriptor or a negative
 * errno with `why`. */
static int peer_connect(const char *url, char why[WH_REFUSAL_MAX])
{
	struct sockaddr_storage address[4];
	unsigned count = 4;
	int fd = -1, error = wh_rendezvous_resolve(url, WH_RESOLVE_REMOTE, address, &count);

	if (error) {
		snprintf(why, WH_REFUSAL_MAX, "%.190s", wh_fail_text());
		return error;
	}
	for (unsigned i = 0; i < count; i++) {
		fd = socket(address[i].ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0)
			socket_bound(fd);
		if (fd >= 0 && !connect(fd, (struct sockaddr *)&address[i], sizeof(address[i])))
			return fd;
		error = errno == EINPROGRESS ? -ETIMEDOUT : -errno;
		if (fd >= 0)
			close(fd);
	}
	snprintf(why, WH_REFUSAL_MAX, "%s", strerror(-error));
	return error;
}

/* Is the peer at the other end of the socket a process that this one may map, and may see? */
static void peer_add_user(int fd, struct finding *finding)
{
	socklen_t length = sizeof(struct ucred);
	struct ucred user = { .pid = 0 };
	uid_t other;
	int error = wh_unix_owner(fd, &other);

	if (error == -EACCES) {
		finding_add(finding, WARN, "it is of user %u, this process of user %u",
			    (unsigned)other, (unsigned)geteuid());
		finding_advise(finding, "securityContext: {runAsUser: N} with the same N in both");
	} else if (error == -EOVERFLOW) {
		finding_add(finding, WARN,
			    "another user namespace, whose users have no number here");
		finding_advise(finding, "spec: {hostUsers: true} in both pods");
	} else if (error) {
		finding_add(finding, UNKNOWN, "SO_PEERCRED: %s", strerror(-error));
	}
	getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &length);
	finding_add(finding, user.pid > 0 ? PASS : INFO, "its PID namespace is %s",
		    user.pid > 0 ? "seen from here" :
				   "not seen from here: memory that wh_memory_alloc() has not "
				   "allocated goes by TCP");
}

/* Meet it as an engine would. */
static void peer_meet(const struct doctor *doctor, const struct wh_hello *welcome, bool inside,
		      struct finding *finding)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char why[WH_REFUSAL] = "";
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), found, error = -ENOENT;
	struct wh_meet_folders folders;

	doctor_folders(doctor, &folders);
	socket_bound(fd);
	if (inside) {
		memcpy(address.sun_path + 1, welcome->socket, strlen(welcome->socket));
		error = connect(fd, (struct sockaddr *)&address,
				(socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
					    strlen(welcome->socket))) ?
				-errno :
				0;
	} else if (!(welcome->capabilities & WH_CAPABLE_MEET)) {
		snprintf(why, sizeof(why), "it listens in no folder");
	} else {
		found = wh_meet_find(&folders, welcome->socket, why);
		error = found < 0 ? found : wh_meet_connect(fd, found);
		if (found >= 0)
			close(found);
	}
	if (error) {
		finding_add(finding, WARN, "its unix socket is not reached: %s",
			    *why ? why : strerror(-error));
		finding_advise(finding,
			       "one volume in both pods: volumes: [{name: wherry, hostPath: {path: "
			       "/run/wherry, type: DirectoryOrCreate}}], volumeMounts: [{name: "
			       "wherry, mountPath: /run/wherry}]");
	} else {
		finding_add(finding, PASS, "its unix socket is reached%s",
			    inside ? "" : " in a folder that both mount");
		peer_add_user(fd, finding);
	}
	close(fd);
}

static void container_peer(const struct doctor *doctor, struct finding *finding)
{
	uint8_t here[WH_MACHINE_SIZE];
	char why[WH_REFUSAL_MAX] = "";
	struct wh_hello welcome = { 0 };
	const char *error_text;
	struct url url;
	int fd, error;

	error_text = url_parse(doctor->peer, &url);
	if (error_text) {
		finding_add(finding, FAIL, "%.200s %s", doctor->peer, error_text);
		return;
	}
	fd = peer_connect(url.engine, why);
	error = fd < 0 ? fd : peer_welcome(fd, &welcome, why);
	if (fd >= 0)
		close(fd);
	if (error) {
		finding_add(finding, fd < 0 ? FAIL : UNKNOWN, "%.200s: %s", url.engine, why);
		return;
	}
	if (wh_machine_identify(here)) {
		finding_add(finding, UNKNOWN, "/proc does not say which machine this is");
	} else if (memcmp(here + 8, welcome.host + 8, 8) != 0) {
		finding_add(finding, INFO, "%s is on another machine", welcome.name);
	} else {
		bool inside = !memcmp(here, welcome.host, sizeof(here));

		finding_add(finding, PASS, "%s is on this machine, in %s network namespace",
			    welcome.name, inside ? "this" : "another");
		if (wh_meet_name_valid(welcome.socket))
			peer_meet(doctor, &welcome, inside, finding);
		else
			finding_add(finding, WARN, "it has no unix socket: shm is off there");
	}
}

const struct check doctor_peer_check = { .id = "container.peer",
					 .title = "what is shared with --peer",
					 .machine = container_peer };
