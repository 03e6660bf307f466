/* A placement: which replica is on which host, what that costs, and what a move would change.
 *
 * Plain C without Python's headers, called through ctypes: one library serves every Python, and the interpreter's lock is
 * free while it runs. problem.py says what the arrays mean; here they are only counted. "Nowhere" is host -1.
 */
#ifndef NETAWARE_STATE_H
#define NETAWARE_STATE_H

#include <stdint.h>

enum { ROUTE_ANY = 0, ROUTE_ZONE = 1, ROUTE_NODE = 2 };
enum { RULE_SPREAD = 0, RULE_ANTI_AFFINITY = 1, RULE_AFFINITY = 2, RULE_PREFERENCE = 3 };
enum { COUNTED = 1, OWNER = 2 };

/* The order of the fields is the order in native.py. Every array is C-contiguous and outlives the call. */
typedef struct {
  int64_t hosts, resources, zones, classes, workloads, replicas, edges, tables, rules;
  const int64_t *free;          /* [host][resource] */
  const double *inverse;        /* [host][resource] 1 / capacity, 0 where there is none */
  const int32_t *zone_of;       /* [host] */
  const uint8_t *zoned;         /* [zone] whether its nodes carry the zone label */
  const double *host_price;     /* [host] of a replica there */
  const int32_t *workload_of;   /* [class] */
  const int32_t *row_of;        /* [class] row of `allowed` */
  const uint8_t *allowed;       /* [row][host] */
  const int64_t *ask_start;     /* [class + 1] into ask_resource, ask_amount */
  const int32_t *ask_resource;
  const int64_t *ask_amount;
  const int32_t *class_of;      /* [replica] */
  const int64_t *total;         /* [workload] replicas of it, fixed ones included */
  const uint8_t *must_span_zones;      /* [workload] whether it must not be wholly in one zone */
  const double *host_penalty, *zone_penalty; /* [workload] cost of two of its replicas on one host, in one zone, over 2 */
  const int64_t *fixed_start;   /* [workload + 1] into fixed_host */
  const int32_t *fixed_host;    /* a host per fixed replica */
  const int32_t *caller, *callee, *routing, *table; /* [edge] */
  const double *weight;         /* [edge] traffic of all callers together */
  const double *latency;        /* [table][zone][zone] between different hosts */
  const double *local;          /* [table] within a host */
  const uint8_t *violates_limit;        /* [table][zone][zone] whether the path exceeds the table's limit */
  const int32_t *rule_kind, *rule_skew; /* [rule] */
  const uint8_t *rule_short;    /* [rule] fewer domains than minDomains: the least is 0 */
  const double *rule_price;     /* [rule] of soft ones */
  const int32_t *domain_of;     /* [rule][host] or -1 */
  const int64_t *domain_start;  /* [rule + 1] into the three that follow */
  const int64_t *bound, *owned;
  const uint8_t *eligible;      /* whether a domain's count enters the least */
  const int64_t *role_start;    /* [class + 1] into role_rule, role */
  const int32_t *role_rule;
  const uint8_t *role;
  double limit_price, one_zone_price, load_price, balance_price, crowd_price;
} Problem;

typedef struct { int32_t *item, length, capacity; } Roster;

typedef struct {
  const Problem *p;
  int32_t *at;                  /* [replica] */
  int32_t *roster_index;        /* [replica] in the roster of its host */
  Roster *roster;               /* [host] */
  int64_t *free;                /* [host][resource] */
  int64_t *ask;                 /* [class][resource] */
  int32_t *count;               /* [workload][host] */
  int64_t *in_zone;             /* [workload][zone] */
  int64_t *unzoned;             /* [workload] its replicas on nodes without a zone label; with one, zone hints do not count */
  int64_t *shared;              /* [edge][zone] pairs on one host, or what of the calls stays on the host */
  double *to_all;               /* [edge][zone] cost of one caller there to all replicas of the callee */
  double *term;                 /* [edge][zone] */
  double *mean_detour;          /* [table][zone] mean extra latency of a call that leaves the zone */
  double *pair_weight;          /* [edge] weight of one pair */
  int64_t *adjacent_start;      /* [workload + 1] into adjacent: edge * 2 + (1 when it is the callee) */
  int64_t *adjacent;
  int64_t *member_start;        /* [workload + 1] into member */
  int32_t *member;              /* movable replicas by workload */
  int64_t *counted, *owners;    /* per rule and domain: replicas that the rule counts, and that carry it */
  int64_t *least;               /* [rule] of the eligible domains */
  int32_t *crowd;               /* [host] replicas on it, fixed ones included */
  int64_t placed;
  uint64_t random;
} State;

State *state_new(const Problem *p, uint64_t seed);
void state_free(State *s);

double state_network(const State *s, int32_t class, int32_t from, int32_t to);
double state_other_delta(const State *s, int32_t class, int32_t from, int32_t to);
double state_delta(const State *s, int32_t replica, int32_t to);
double state_cost(const State *s);
void state_move(State *s, int32_t replica, int32_t to);
int state_fits(const State *s, int32_t class, int32_t host);
int state_may_leave(const State *s, int32_t class, int32_t from);
int state_allows(const State *s, int32_t class, int32_t from, int32_t host);

static inline uint64_t draw(State *s) {
  s->random ^= s->random << 13;
  s->random ^= s->random >> 7;
  s->random ^= s->random << 17;
  return s->random * 0x2545F4914F6CDD1DULL;
}
static inline int64_t below(State *s, int64_t n) { return (int64_t)(((draw(s) >> 32) * (uint64_t)n) >> 32); }
static inline double chance(State *s) { return (double)(draw(s) >> 11) * 0x1.0p-53; }
static inline int allows(const Problem *p, int32_t class, int32_t host) {
  return p->allowed[(int64_t)p->row_of[class] * p->hosts + host];
}

#endif
