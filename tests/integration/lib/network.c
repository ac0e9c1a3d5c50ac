/* SPDX-License-Identifier: Apache-2.0 */
/* network.c: network namespaces as hosts, and a router between two of them */
#include "network.h"

#include <fcntl.h>
#include <sched.h>

static int outside = -1;

/* Tries in a process of its own, so that this one does not change. */
static const char *missing_network(void)
{
	return system("unshare -n ip link set lo up 2>/dev/null") ?
		       "no network namespaces here: they want root, unshare and ip" :
		       NULL;
}

const struct route needs_network = { .name = "network", .missing = missing_network };

static const char *missing_netem(void)
{
	return getenv("TEST_NETEM") ?
		       NULL :
		       "netem is for the lab, where TEST_NETEM says that it is there";
}

const struct route needs_netem = { .name = "netem", .missing = missing_netem };

static int network_current(void)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/ns/net", (int)gettid());
	fd = open(path, O_RDONLY | O_CLOEXEC);
	want_true(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

/* Run a shell command in a network. */
static void network_run(int network, const char *command)
{
	char line[512];

	snprintf(line, sizeof(line), "nsenter --net=/proc/%d/fd/%d sh -ec '%s'", (int)getpid(),
		 network, command);
	want_true(system(line) == 0, "%s", command);
}

int network_new(void)
{
	if (outside < 0)
		outside = network_current();
	want_true(unshare(CLONE_NEWNET) == 0, "%s", strerror(errno));
	want(0, system("ip link set lo up"));
	return network_current();
}

void network_enter(int network)
{
	want_true(setns(network, CLONE_NEWNET) == 0, "%s", strerror(errno));
}

void network_leave(void)
{
	network_enter(outside);
	close(outside);
	outside = -1;
}

void network_pair_open(struct network_pair *pair)
{
	char line[256];

	pair->router = network_new();
	network_run(pair->router,
		    "ip link add l0 type veth peer name l1; ip link add r0 type veth peer name r1; "
		    "ip addr add 10.77.1.1/24 dev l0; ip addr add 10.77.2.1/24 dev r0; "
		    "ip link set l0 up; ip link set r0 up; echo 1 >/proc/sys/net/ipv4/ip_forward");
	pair->right = network_new();
	snprintf(line, sizeof(line), "ip link set r1 netns %d", (int)gettid());
	network_run(pair->router, line);
	network_run(pair->right, "ip addr add " NETWORK_RIGHT "/24 dev r1; ip link set r1 up; "
				 "ip route add default via 10.77.2.1");
	pair->left = network_new();
	snprintf(line, sizeof(line), "ip link set l1 netns %d", (int)gettid());
	network_run(pair->router, line);
	network_run(pair->left, "ip addr add " NETWORK_LEFT "/24 dev l1; ip link set l1 up; "
				"ip route add default via 10.77.1.1");
}

void network_pair_disturb(const struct network_pair *pair, const char *how)
{
	char line[256];

	snprintf(line, sizeof(line),
		 "for d in l0 r0; do tc qdisc replace dev $d root netem %s; done", how);
	network_run(pair->router, line);
}

/* Without netem, which not every kernel has, the router stops forwarding: that loses all packets,
 * too. */
void network_pair_cut(const struct network_pair *pair, bool cut)
{
	if (!needs_netem.missing()) {
		network_pair_disturb(pair, cut ? "loss 100%" : "delay 1ms");
		return;
	}
	network_run(pair->router, cut ? "echo 0 >/proc/sys/net/ipv4/ip_forward" :
					"echo 1 >/proc/sys/net/ipv4/ip_forward");
}

void network_pair_close(struct network_pair *pair)
{
	network_leave();
	close(pair->left);
	close(pair->right);
	close(pair->router);
}
