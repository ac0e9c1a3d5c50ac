/* SPDX-License-Identifier: Apache-2.0 */
#include "compat/nixl/info.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "util/text.h"

#define INFO_VERSION 1

void wh_nixl_info_host(char out[64])
{
	char boot[40] = "", network[32] = "";
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	ssize_t length;

	if (file) {
		if (fgets(boot, sizeof(boot), file))
			boot[strcspn(boot, "\n")] = 0;
		fclose(file);
	}
	/* "net:[4026531840]" */
	length = readlink("/proc/self/ns/net", network, sizeof(network) - 1);
	network[length > 0 ? length : 0] = 0;
	snprintf(out, 64, "%s%s", boot, network);
}

bool wh_nixl_info_is_near(const struct wh_nixl_info *info)
{
	char host[64];

	wh_nixl_info_host(host);
	return !strcmp(host, info->host);
}

static void info_add_url(struct wh_nixl_info *info, const char *address, const char *port)
{
	if (info->url_count < WH_NIXL_INFO_URLS)
		snprintf(info->url[info->url_count++], sizeof(info->url[0]),
			 strchr(address, ':') ? "wherry://[%s]%s" : "wherry://%s%s", address, port);
}

/* One URL for each address of the host that others can use, then loopback. `port` is ":PORT". */
static int info_add_all(struct wh_nixl_info *info, bool v6, const char *port)
{
	struct ifaddrs *all, *one;

	if (getifaddrs(&all))
		return -errno;
	for (one = all; one; one = one->ifa_next) {
		const struct sockaddr_in *v4;
		const struct sockaddr_in6 *six;
		char text[INET6_ADDRSTRLEN] = "";

		if (!one->ifa_addr || !(one->ifa_flags & IFF_UP) || (one->ifa_flags & IFF_LOOPBACK))
			continue;
		if (one->ifa_addr->sa_family == AF_INET) {
			v4 = (const void *)one->ifa_addr;
			inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
		} else if (one->ifa_addr->sa_family == AF_INET6 && v6) {
			six = (const void *)one->ifa_addr;
			if (!IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
				inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof(text));
		}
		if (*text && info->url_count < WH_NIXL_INFO_URLS - 1)
			info_add_url(info, text, port);
	}
	freeifaddrs(all);
	info_add_url(info, v6 ? "::1" : "127.0.0.1", port);
	return 0;
}

int wh_nixl_info_of(const struct wh_engine *engine, struct wh_nixl_info *info)
{
	const char *url = wh_engine_url(engine);
	bool v4 = !strncmp(url, "wherry://0.0.0.0:", 17), v6 = !strncmp(url, "wherry://[::]:", 14);

	memset(info, 0, sizeof(*info));
	snprintf(info->name, sizeof(info->name), "%s", wh_engine_name(engine));
	info->epoch = wh_engine_epoch(engine);
	wh_nixl_info_host(info->host);
	if (v4 || v6)
		return info_add_all(info, v6, strrchr(url, ':'));
	if (*url) {
		snprintf(info->url[0], sizeof(info->url[0]), "%s", url);
		info->url_count = 1;
	}
	return 0;
}

void wh_nixl_info_begin(char out[WH_NIXL_INFO_BEGIN])
{
	/* Version 1 (0), with an identity (0x20) and an owner's name (0x10); the identity; the
	 * length of the name, as large as it gets: for a UCX that skips the name, this byte is the
	 * next one, and says that there are no transports. Then the name, of which errors show 31
	 * bytes. */
	static const char text[] = "\x30"
				   "wherry-n"
				   "\xff"
				   "Wherry (both sides need it)";

	memset(out, ' ', WH_NIXL_INFO_BEGIN);
	memcpy(out, text, sizeof(text) - 1);
	out[WH_NIXL_INFO_BEGIN - 1] = (char)0xff; /* no transports */
}

size_t wh_nixl_info_encode(const struct wh_nixl_info *info, char out[WH_NIXL_INFO_MAX])
{
	int length = WH_NIXL_INFO_BEGIN;

	wh_nixl_info_begin(out);
	length += snprintf(out + length, WH_NIXL_INFO_MAX - (size_t)length,
			   "%d\nname=%s\nepoch=%016" PRIx64 "\nhost=%s\n", INFO_VERSION, info->name,
			   info->epoch, info->host);
	for (unsigned i = 0; i < info->url_count; i++)
		length += snprintf(out + length, WH_NIXL_INFO_MAX - (size_t)length, "url=%s\n",
				   info->url[i]);
	return (size_t)length;
}

/* Copy a value that fits and may be shown. */
static bool info_take(char *out, size_t size, const char *value, size_t length)
{
	if (!length || length >= size || !wh_text_is_clean(value, length))
		return false;
	memcpy(out, value, length);
	out[length] = 0;
	return true;
}

static bool info_take_epoch(uint64_t *out, const char *value, size_t length)
{
	char text[17], *end;

	if (!info_take(text, sizeof(text), value, length) ||
	    strspn(text, "0123456789abcdef") != length)
		return false;
	*out = strtoull(text, &end, 16);
	return *out;
}

static bool info_take_line(struct wh_nixl_info *info, const char *line, size_t length)
{
	if (length > 5 && !memcmp(line, "name=", 5))
		return info_take(info->name, sizeof(info->name), line + 5, length - 5);
	if (length > 6 && !memcmp(line, "epoch=", 6))
		return info_take_epoch(&info->epoch, line + 6, length - 6);
	if (length > 5 && !memcmp(line, "host=", 5))
		return info_take(info->host, sizeof(info->host), line + 5, length - 5);
	if (length > 4 && !memcmp(line, "url=", 4))
		return info->url_count == WH_NIXL_INFO_URLS ||
		       (length > 13 && !memcmp(line + 4, "wherry://", 9) &&
			info_take(info->url[info->url_count++], sizeof(info->url[0]), line + 4,
				  length - 4));
	return true;
}

int wh_nixl_info_decode(const char *text, size_t length, struct wh_nixl_info *info)
{
	const char *end = text + length, *line = text + WH_NIXL_INFO_BEGIN;
	char begin[WH_NIXL_INFO_BEGIN];

	memset(info, 0, sizeof(*info));
	wh_nixl_info_begin(begin);
	if (length <= sizeof(begin) || memcmp(text, begin, sizeof(begin)) != 0)
		return -EPROTO;
	if (end - line < 2 || line[0] != '0' + INFO_VERSION || line[1] != '\n')
		return -EPROTONOSUPPORT;
	for (line += 2; line < end;) {
		const char *stop = memchr(line, '\n', (size_t)(end - line));

		if (!stop || !info_take_line(info, line, (size_t)(stop - line)))
			return -EBADMSG;
		line = stop + 1;
	}
	return *info->name && info->epoch && *info->host ? 0 : -EBADMSG;
}
