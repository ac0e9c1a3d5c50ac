/* SPDX-License-Identifier: Apache-2.0 */
/* Parse addresses of memory: wherry:// with region and offset, mooncake:// with an address. */
#include "url.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "compat/mooncake/wire.h"
#include "rendezvous/registry.h"

#define SCHEME "wherry://"
#define MOONCAKE "mooncake://"

bool url_is(const char *text)
{
	return strncmp(text, SCHEME, strlen(SCHEME)) == 0;
}

static bool is_port(const char *text, size_t length)
{
	unsigned value = 0;

	if (!length || length > 5)
		return false;
	for (size_t i = 0; i < length; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		value = value * 10 + (unsigned)(text[i] - '0');
	}
	return value >= 1 && value <= 65535;
}

/* Check HOST:PORT, NAME:PORT or [IPv6]:PORT of `length` bytes. */
static const char *check_authority(const char *text, size_t length)
{
	char name[WH_REGISTRY_NAME_MAX];
	const char *port, *host = text;
	size_t host_length;

	if (length && text[0] == '[') {
		const char *close = memchr(text, ']', length);

		if (!close)
			return "has no ']' after its IPv6 address";
		host++;
		host_length = (size_t)(close - host);
		port = close + 1;
	} else {
		port = memchr(text, ':', length);
		if (!port)
			port = text + length;
		else if (memchr(port + 1, ':', length - (size_t)(port + 1 - text)))
			return "has an IPv6 address without brackets: write "
			       "wherry://[ADDRESS]:PORT";
		host_length = (size_t)(port - text);
	}
	if (!host_length)
		return "names no host: write wherry://HOST:PORT";
	/* A name for the registry; the library checks whether there is one. */
	if (*text != '[' && port == text + length && host_length < sizeof(name)) {
		memcpy(name, text, host_length);
		name[host_length] = '\0';
		if (wh_registry_name_valid(name))
			return NULL;
	}
	if (port == text + length || *port != ':')
		return "names no port: write wherry://HOST:PORT";
	if (!is_port(port + 1, (size_t)(text + length - port - 1)))
		return "has a port that is not a number from 1 to 65535";
	return NULL;
}

static const char *parse_region(const char *text, struct url *out)
{
	size_t length = strcspn(text, "+");

	if (length >= sizeof(out->region))
		return "has a region name of more than 63 bytes";
	if (!length && text[length])
		return "has an offset but no region: write /REGION+OFFSET";
	if (strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") <
	    length)
		return "has a region name with characters other than A-Z a-z 0-9 . _ -";
	memcpy(out->region, text, length);
	out->region[length] = '\0';
	if (text[length] && !read_size(text + length + 1, &out->offset))
		return "has an offset that is not a size: write +65536 or +64KiB";
	return NULL;
}

const char *url_parse(const char *text, struct url *out)
{
	size_t scheme = strlen(SCHEME), length;
	struct url url = { .offset = 0 };
	const char *wrong;

	if (!url_is(text))
		return "is no address: write wherry://HOST:PORT/REGION";
	length = strcspn(text + scheme, "/");
	if (scheme + length >= sizeof(url.engine))
		return "has a host name that is too long";
	wrong = check_authority(text + scheme, length);
	if (wrong)
		return wrong;
	memcpy(url.engine, text, scheme + length);
	if (text[scheme + length]) {
		wrong = parse_region(text + scheme + length + 1, &url);
		if (wrong)
			return wrong;
	}
	*out = url;
	return NULL;
}

bool mooncake_url_is(const char *text)
{
	return strncmp(text, MOONCAKE, strlen(MOONCAKE)) == 0;
}

/* Parse 0x7f2a40000000, or decimal digits as in Mooncake's own JSON; [+OFFSET]. */
static const char *parse_address(const char *text, uint64_t *out)
{
	bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
	const char *digits = hex ? text + 2 : text;
	size_t length = strspn(digits, hex ? "0123456789abcdefABCDEF" : "0123456789");
	uint64_t address, offset = 0;

	errno = 0;
	address = strtoull(digits, NULL, hex ? 16 : 10);
	if (!length || errno || !address || (digits[length] && digits[length] != '+'))
		return "has no valid address: write /0x7f2a40000000 or /0x7f2a40000000+OFFSET";
	if (digits[length] && !read_size(digits + length + 1, &offset))
		return "has an offset that is not a size: write +65536 or +64KiB";
	if (__builtin_add_overflow(address, offset, out))
		return "has an offset that goes past the last address";
	return NULL;
}

const char *mooncake_url_parse(const char *text, bool named, struct mooncake_url *out)
{
	const char *authority = text + strlen(MOONCAKE), *wrong;
	size_t length = strcspn(authority, "/");
	struct mooncake_url url = { .address = 0 };
	struct wh_mooncake_endpoint endpoint;

	if (length >= sizeof(url.engine))
		return "has a host name that is too long";
	memcpy(url.engine, authority, length);
	if (named ? !length : wh_mooncake_endpoint_read(url.engine, &endpoint))
		return "names no engine: write mooncake://HOST:PORT/ADDRESS";
	wrong = authority[length] && authority[length + 1] ?
			parse_address(authority + length + 1, &url.address) :
			NULL;
	if (!wrong)
		*out = url;
	return wrong;
}
