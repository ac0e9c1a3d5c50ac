/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of memory: wherry://HOST:PORT/REGION[+OFFSET], or with a registry
 * wherry://NAME/REGION[+OFFSET]. */
#ifndef TOOLS_URL_H
#define TOOLS_URL_H

#include <stdbool.h>
#include <stdint.h>

struct url {
	/* "wherry://HOST:PORT" or "wherry://NAME", for wh_peer_open() */
	char engine[288];
	char region[64]; /* "": none */
	uint64_t offset; /* 0: none */
};

/* Starts with "wherry://". Otherwise the text names a file. */
bool url_is(const char *text);

/* Parse an address. NULL, or the error as the end of a sentence that starts with the text. */
const char *url_parse(const char *text, struct url *out);

/* "mooncake://HOST:PORT/ADDRESS[+OFFSET]": memory of a Mooncake engine. */
struct mooncake_url {
	char engine[256]; /* "HOST:PORT", or a name */
	uint64_t address; /* offset included; 0: none */
};

bool mooncake_url_is(const char *text);
/* `named`: the engine is a name in a metadata store. */
const char *mooncake_url_parse(const char *text, bool named, struct mooncake_url *out);

#endif
