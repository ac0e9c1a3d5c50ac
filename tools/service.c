/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that end a server, its address on the standard output, and what systemd is told. */
#include "service.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "command.h"

static sigset_t stop_signals(void)
{
	sigset_t stop;

	sigemptyset(&stop);
	sigaddset(&stop, SIGINT);
	sigaddset(&stop, SIGTERM);
	return stop;
}

int service_signals(void)
{
	sigset_t stop = stop_signals();
	int signals;

	sigprocmask(SIG_BLOCK, &stop, NULL);
	signals = signalfd(-1, &stop, SFD_CLOEXEC);
	return signals < 0 ? -fail(errno, "signalfd: %s", strerror(errno)) : signals;
}

int service_print(const char *address)
{
	printf("%s\n", address);
	if (fflush(stdout))
		return fail(errno, "cannot write to standard output: %s", strerror(errno));
	return EXIT_PASS;
}

/* Send `state` to the socket that NOTIFY_SOCKET names. 0 without one; else a negative errno. */
static int notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	size_t length = path ? strlen(path) : 0;
	socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
	ssize_t sent;
	int fd, error;

	if (!length)
		return 0;
	if ((*path != '/' && *path != '@') || length >= sizeof(to.sun_path))
		return -EAFNOSUPPORT;
	memcpy(to.sun_path, path, length);
	if (*path == '@') /* a name without a file */
		to.sun_path[0] = '\0';
	else
		size++;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	sent = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to, size);
	error = sent < 0 ? -errno : 0;
	close(fd);
	return error;
}

int service_ready(const char *address)
{
	char state[512];
	int error;

	snprintf(state, sizeof(state), "READY=1\nSTATUS=Serving at %s", address);
	error = notify(state);
	return error ? fail(error, "cannot tell systemd at NOTIFY_SOCKET=%s: %s",
			    getenv("NOTIFY_SOCKET"), strerror(-error)) :
		       EXIT_PASS;
}

void service_end(int signals)
{
	sigset_t stop = stop_signals();

	notify("STOPPING=1");
	sigprocmask(SIG_UNBLOCK, &stop, NULL);
	close(signals);
}
