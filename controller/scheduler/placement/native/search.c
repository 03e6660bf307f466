/* The search: place all replicas, make room for those without a host, then anneal.
 *
 * Annealing after S. Kirkpatrick et al., Optimization by simulated annealing, 1983; ejection of replicas by penalties after
 * Y. Nagata and O. Braysy, A powerful route minimization heuristic, 2009. Counts bound the work, so that the same problem
 * and seed give the same answer, unless the deadline cuts the search short.
 */
#define _POSIX_C_SOURCE 199309L
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

#define MAX_EJECTED 3
#define MAX_EJECTION_REPLICAS 48 /* of a host that are considered for ejection */
#define MAX_EJECTION_HOSTS 64
#define FAILURE_PRICE 8          /* of an ejection per failure of the ejected; a random price below that decides between equals */
#define MAX_FOLLOWERS 16         /* replicas that must move with another */
#define MAX_FOLLOWER_TRIES 24    /* hosts that are tried for a follower */
#define MAX_TRIAL_MOVES (2 * MAX_FOLLOWERS + 1)
#define DESCENT_PASSES 8
#define MAX_DESCENT_AFTER 20000000 /* replicas times hosts up to which descents follow annealing, and also precede it */
#define MAX_DESCENT_BEFORE 200000

typedef struct {
  State *s;
  int32_t turn;             /* counts calls of best_host */
  int32_t *neighbour_turn;  /* [host] turn in which it has a replica of an adjacent workload */
  double *zone_price;       /* [zone] network price of its other hosts, in the turn of zone_price_turn */
  int32_t *zone_price_turn; /* [zone] */
  double ends_at;
} Search;

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static int is_past_deadline(const Search *q) { return now_s() > q->ends_at; }
static int32_t class_at(const State *s, int32_t i) { return s->p->class_of[i]; }
static int64_t workload_at(const State *s, int32_t i) { return s->p->workload_of[s->p->class_of[i]]; }

/* The workload at the other end of an entry of State.adjacent. */
static int64_t adjacent_workload(const Problem *p, int64_t adjacent) {
  return adjacent & 1 ? p->caller[adjacent >> 1] : p->callee[adjacent >> 1];
}

static void copy_hosts(int32_t *to, const State *s) { memcpy(to, s->host_of, (size_t)s->p->replicas * sizeof(int32_t)); }

/* Marks the hosts that have replicas of adjacent workloads: their price differs from that of their zone. */
static void mark_neighbours(Search *q, int64_t w) {
  State *s = q->s;
  const Problem *p = s->p;
  q->turn++;
  for (int64_t k = s->adjacent_start[w]; k < s->adjacent_start[w + 1]; k++) {
    int64_t other = adjacent_workload(p, s->adjacent[k]);
    for (int64_t m = s->member_start[other]; m < s->member_start[other + 1]; m++)
      if (s->host_of[s->member[m]] >= 0) q->neighbour_turn[s->host_of[s->member[m]]] = q->turn;
    for (int64_t f = p->fixed_start[other]; f < p->fixed_start[other + 1]; f++) q->neighbour_turn[p->fixed_host[f]] = q->turn;
  }
}

/* The cheapest host for an unplaced replica, in one zone unless that is -1; -1 if no host admits it. */
static int32_t best_host(Search *q, int32_t i, int64_t zone) {
  State *s = q->s;
  const Problem *p = s->p;
  int32_t class = class_at(s, i), best = -1;
  double least = INFINITY;
  mark_neighbours(q, p->workload_of[class]);
  const uint8_t *allowed = p->allowed + (int64_t)p->row_of[class] * p->hosts;
  for (int32_t h = 0; h < p->hosts; h++) {
    if (!allowed[h] || (zone >= 0 && p->zone_of[h] != zone) || !state_fits(s, class, h)) continue;
    double price;
    int32_t z = p->zone_of[h];
    if (q->neighbour_turn[h] == q->turn) price = state_network_delta(s, class, -1, h);
    else {
      if (q->zone_price_turn[z] != q->turn) q->zone_price[z] = state_network_delta(s, class, -1, h), q->zone_price_turn[z] = q->turn;
      price = q->zone_price[z];
    }
    price += state_other_delta(s, class, -1, h);
    if (price < least && state_allows(s, class, -1, h)) least = price, best = h;
  }
  return best;
}

typedef struct { double key; int32_t item; } Ranked;

static int by_key(const void *a, const void *b) {
  const Ranked *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->item - y->item;
}

/* Orders replicas along the heaviest edges, alternating between callers and callees. */
static void order_by_traffic(State *s, Ranked *order) {
  const Problem *p = s->p;
  Ranked *edge = calloc((size_t)p->edges + 1, sizeof(Ranked));
  uint8_t *taken = calloc((size_t)p->workloads + 1, 1);
  for (int32_t e = 0; e < p->edges; e++) edge[e].item = e, edge[e].key = -p->weight[e] * (0.8 + 0.4 * random_unit(s));
  qsort(edge, (size_t)p->edges, sizeof *edge, by_key);
  int64_t n = 0;
  for (int64_t turn = 0; turn <= p->edges + p->workloads - 1; turn++) {
    int64_t w[2];
    if (turn < p->edges) w[0] = p->caller[edge[turn].item], w[1] = p->callee[edge[turn].item];
    else w[0] = w[1] = turn - p->edges;
    int64_t from[2] = {0, 0}, count[2] = {0, 0};
    for (int i = 0; i < 2; i++)
      if (!taken[w[i]]) {
        taken[w[i]] = 1;
        from[i] = s->member_start[w[i]];
        count[i] = s->member_start[w[i] + 1] - from[i];
      }
    for (int64_t k = 0; k < count[0] || k < count[1]; k++)
      for (int i = 0; i < 2; i++)
        if (k < count[i]) order[n++].item = s->member[from[i] + k];
  }
  free(edge);
  free(taken);
}

/* Places the replicas that have no host, in one zone unless that is -1. */
static void place_in_order(Search *q, const Ranked *order, int64_t zone) {
  for (int64_t k = 0; k < q->s->p->replicas; k++) {
    int32_t i = order[k].item;
    if (q->s->host_of[i] >= 0) continue;
    int32_t h = best_host(q, i, zone);
    if (h >= 0) state_move(q->s, i, h);
    if (k % 64 == 0 && is_past_deadline(q)) return;
  }
}

static void restore(State *s, const int32_t *host_of) {
  for (int32_t i = 0; i < s->p->replicas; i++) state_move(s, i, -1);
  for (int32_t i = 0; i < s->p->replicas; i++) state_move(s, i, host_of[i]);
}

static int admits(const State *s, int32_t class, int32_t from, int32_t host) {
  return is_allowed(s->p, class, host) && state_fits(s, class, host) && state_allows(s, class, from, host);
}

static int may_move(const State *s, int32_t i, int32_t host) { return admits(s, class_at(s, i), s->host_of[i], host); }

static int accepts(State *s, double delta, double temperature) {
  return delta <= 0 || (temperature > 0 && random_unit(s) < exp(-delta / temperature));
}

/* Moves that are kept or undone together. */
typedef struct {
  State *s;
  double delta;
  int steps;
  int32_t replica[MAX_TRIAL_MOVES], from[MAX_TRIAL_MOVES];
} Trial;

/* Moves a replica, or takes it from its host (-1), if room and rules allow it. */
static int try_move(Trial *t, int32_t i, int32_t to) {
  State *s = t->s;
  if (to < 0 ? !state_may_leave(s, class_at(s, i), s->host_of[i]) : !may_move(s, i, to)) return 0;
  t->replica[t->steps] = i;
  t->from[t->steps++] = s->host_of[i];
  t->delta += state_delta(s, i, to);
  state_move(s, i, to);
  return 1;
}

static void undo_trial(Trial *t) {
  while (t->steps--) state_move(t->s, t->replica[t->steps], t->from[t->steps]);
}

/* Keeps the moves if all were possible and the change is accepted; returns the change. */
static double finish_trial(Trial *t, int possible, double temperature) {
  if (possible && accepts(t->s, t->delta, temperature)) return t->delta;
  undo_trial(t);
  return 0;
}

/* Whether a host admits a class without some of its replicas. These are removed and put back, if any of all has rules. */
static int admits_after_ejection(State *s, int32_t class, int32_t host, const int32_t *ejected, int n) {
  const Problem *p = s->p;
  for (int64_t a = p->request_start[class]; a < p->request_start[class + 1]; a++) {
    int64_t r = p->request_resource[a], room = s->free[host * p->resources + r];
    for (int k = 0; k < n; k++) room += s->request[class_at(s, ejected[k]) * p->resources + r];
    if (room < p->request_amount[a]) return 0;
  }
  int depends_on_rules = has_rules(p, class), is_admitted = 1;
  for (int k = 0; k < n; k++) depends_on_rules |= has_rules(p, class_at(s, ejected[k]));
  if (!depends_on_rules) return 1;
  Trial t = {.s = s};
  for (int k = 0; is_admitted && k < n; k++) is_admitted = try_move(&t, ejected[k], -1);
  is_admitted = is_admitted && admits(s, class, -1, host);
  undo_trial(&t);
  return is_admitted;
}

typedef struct {
  int32_t host, size, ejected[MAX_EJECTED];
  int64_t price;
} Ejection;

/* Improves `best` by replicas of a host whose removal admits a class: one replica, else two or three. */
static void find_ejection(State *s, int32_t class, int32_t host, const int64_t *failures, Ejection *best) {
  int32_t members[MAX_EJECTION_REPLICAS];
  ReplicaList *r = &s->replicas_on[host];
  int n = r->length < MAX_EJECTION_REPLICAS ? r->length : MAX_EJECTION_REPLICAS;
  int32_t first = r->length > n ? (int32_t)random_below(s, r->length) : 0;
  for (int k = 0; k < n; k++) members[k] = r->item[(k + first) % r->length];
  for (int k = 0; k < n; k++) {
    int64_t price = failures[class_at(s, members[k])] * FAILURE_PRICE + random_below(s, FAILURE_PRICE);
    if (price < best->price && admits_after_ejection(s, class, host, &members[k], 1))
      best->price = price, best->host = host, best->size = 1, best->ejected[0] = members[k];
  }
  for (int turn = 0; n > 1 && best->host != host && turn < 6; turn++) {
    int64_t price = random_below(s, FAILURE_PRICE);
    for (int size = 1; size <= MAX_EJECTED && size <= n; size++) { /* the first `size` members are ejected */
      int k = size - 1 + (int)random_below(s, n - size + 1);
      int32_t member = members[k];
      members[k] = members[size - 1], members[size - 1] = member;
      price += failures[class_at(s, member)] * FAILURE_PRICE;
      if (price >= best->price) break;
      if (size > 1 && admits_after_ejection(s, class, host, members, size)) {
        best->price = price, best->host = host, best->size = size;
        memcpy(best->ejected, members, (size_t)size * sizeof *members);
        break;
      }
    }
  }
}

/* Random moves that resources and rules allow, at any cost, to redistribute free capacity. */
static void perturb(State *s, int tries) {
  const Problem *p = s->p;
  for (int k = 0; k < tries; k++) {
    int32_t i = (int32_t)random_below(s, p->replicas), h = (int32_t)random_below(s, p->hosts);
    if (s->host_of[i] >= 0 && s->host_of[i] != h && may_move(s, i, h)) state_move(s, i, h);
  }
}

/* Whether a class fits no host, even without the other movable replicas. */
static int fits_no_host(const State *s, int32_t class) {
  const Problem *p = s->p;
  for (int32_t h = 0; h < p->hosts; h++)
    if (is_allowed(p, class, h) && fits(p, class, p->free + (int64_t)h * p->resources)) return 0;
  return 1;
}

/* Replicas without a host, except those that fit no host even if it is empty. */
typedef struct {
  int32_t *item;
  int64_t length;
  int64_t *failures;    /* [class] how often a replica of it found no host; -1 if it fits none */
  int32_t *failed_turn; /* [class] turn in which no host admitted a replica of it */
} Pool;

/* Places replicas of the pool that a host admits. After a failure it skips the class. */
static void place_pool(Search *q, Pool *pool, int32_t turn) {
  State *s = q->s;
  for (int64_t k = pool->length - 1; k >= 0; k--) {
    int32_t i = pool->item[k], class = class_at(s, i), h = pool->failed_turn[class] == turn ? -1 : best_host(q, i, -1);
    if (h < 0) pool->failed_turn[class] = turn;
    else state_move(s, i, h), pool->item[k] = pool->item[--pool->length];
  }
}

/* Places a random replica of the pool instead of replicas with few failures, which then join the pool. */
static void eject(Search *q, Pool *pool) {
  State *s = q->s;
  const Problem *p = s->p;
  int64_t k = random_below(s, pool->length);
  int32_t i = pool->item[k], class = class_at(s, i), first = (int32_t)random_below(s, p->hosts);
  Ejection best = {-1, 0, {0}, INT64_MAX};
  pool->failures[class]++;
  for (int32_t step = 0, tries = 0; step < p->hosts && tries < MAX_EJECTION_HOSTS; step++) {
    int32_t host = (first + step) % (int32_t)p->hosts;
    if (!is_allowed(p, class, host) || !s->replicas_on[host].length) continue;
    tries++;
    find_ejection(s, class, host, pool->failures, &best);
  }
  if (best.host < 0) return;
  pool->item[k] = pool->item[--pool->length];
  for (int n = 0; n < best.size; n++) state_move(s, best.ejected[n], -1), pool->item[pool->length++] = best.ejected[n];
  state_move(s, i, best.host);
}

/* Places replicas without a host by ejecting others, and then those; keeps the placement of most replicas. */
static void make_room(Search *q, int64_t turns) {
  State *s = q->s;
  const Problem *p = s->p;
  size_t replicas = (size_t)p->replicas + 1, classes = (size_t)p->classes + 1;
  int32_t *best = malloc(replicas * sizeof(int32_t));
  Pool pool = {malloc(replicas * sizeof(int32_t)), 0, calloc(classes, sizeof(int64_t)), calloc(classes, sizeof(int32_t))};
  for (int32_t k = 0; k < p->classes; k++) pool.failures[k] = fits_no_host(s, k) ? -1 : 1;
  for (int32_t i = 0; i < p->replicas; i++)
    if (s->host_of[i] < 0 && pool.failures[class_at(s, i)] > 0) pool.item[pool.length++] = i;
  int64_t most = s->n_placed;
  copy_hosts(best, s);
  for (int32_t turn = 1; turn <= turns && pool.length && !is_past_deadline(q); turn++) {
    eject(q, &pool);
    if (turn % 4 == 0) perturb(s, 12);
    place_pool(q, &pool, turn);
    if (s->n_placed > most) most = s->n_placed, copy_hosts(best, s);
  }
  if (s->n_placed < most) restore(s, best);
  free(best);
  free(pool.item);
  free(pool.failures);
  free(pool.failed_turn);
}

/* Proposes a host for a replica: in 14 of 16 cases one that has a replica of an adjacent workload, else any. */
static int32_t propose(State *s, int32_t i) {
  const Problem *p = s->p;
  int64_t w = workload_at(s, i), degree = s->adjacent_start[w + 1] - s->adjacent_start[w];
  if (degree && (random_bits(s) & 15) < 14) {
    int64_t other = adjacent_workload(p, s->adjacent[s->adjacent_start[w] + random_below(s, degree)]);
    int64_t members = s->member_start[other + 1] - s->member_start[other];
    int64_t fixed = p->fixed_start[other + 1] - p->fixed_start[other], pick = random_below(s, members + fixed + 1);
    if (pick < members) return s->host_of[s->member[s->member_start[other] + pick]];
    if (pick < members + fixed) return p->fixed_host[p->fixed_start[other] + pick - members];
  }
  return (int32_t)random_below(s, p->hosts);
}

/* Whether the free resources of two hosts suffice after replicas of two classes change places. */
static int swap_fits(const State *s, int32_t class_a, int32_t class_b, int32_t host_a, int32_t host_b) {
  int64_t resources = s->p->resources;
  for (int64_t r = 0; r < resources; r++) {
    int64_t more = s->request[class_a * resources + r] - s->request[class_b * resources + r];
    if ((more > 0 && s->free[host_b * resources + r] < more) || (more < 0 && s->free[host_a * resources + r] < -more)) return 0;
  }
  return 1;
}

/* Swaps two replicas, or moves neither; returns the change of the cost. */
static double swap(State *s, int32_t a, int32_t b, double temperature) {
  int32_t host_a = s->host_of[a], host_b = s->host_of[b], class_a = class_at(s, a), class_b = class_at(s, b);
  if (class_a == class_b || !is_allowed(s->p, class_a, host_b) || !is_allowed(s->p, class_b, host_a)) return 0;
  if (!swap_fits(s, class_a, class_b, host_a, host_b) || !state_may_leave(s, class_b, host_b)) return 0;
  Trial t = {.s = s};
  return finish_trial(&t, try_move(&t, a, -1) && try_move(&t, b, host_a) && try_move(&t, a, host_b), temperature);
}

/* Gives the host of a placed replica to an unplaced one, or moves neither; returns the change of the cost. */
static double replace(State *s, int32_t unplaced, int32_t placed, double temperature) {
  int32_t host = s->host_of[placed];
  Trial t = {.s = s};
  return finish_trial(&t, try_move(&t, placed, -1) && try_move(&t, unplaced, host), temperature);
}

/* Finds the replicas in a domain that carry this affinity rule, except one; returns their number, -1 if there are too many. */
static int find_followers(const State *s, int64_t r, int32_t domain, int32_t except, int32_t *found) {
  const Problem *p = s->p;
  int n = 0;
  for (int32_t h = 0; h < p->hosts; h++) {
    if (p->domain_of[r * p->hosts + h] != domain) continue;
    for (int32_t k = 0; k < s->replicas_on[h].length; k++) {
      int32_t i = s->replicas_on[h].item[k], is_owner = 0, class = class_at(s, i);
      for (int64_t a = p->role_start[class]; a < p->role_start[class + 1]; a++) is_owner |= p->role_rule[a] == r && (p->role[a] & OWNER);
      if (i == except || !is_owner) continue;
      if (n == MAX_FOLLOWERS) return -1;
      found[n++] = i;
    }
  }
  return n;
}

/* Moves a replica to another domain, and the replicas that must share its domain to the same or a random host. */
static double move_with_followers(State *s, int32_t i, int32_t to, double temperature) {
  const Problem *p = s->p;
  int32_t class = class_at(s, i), here = s->host_of[i], followers[MAX_FOLLOWERS];
  int64_t rule = -1;
  for (int64_t a = p->role_start[class]; a < p->role_start[class + 1]; a++) {
    int64_t r = p->role_rule[a];
    int32_t domain = p->domain_of[r * p->hosts + here];
    if (p->rule_kind[r] == RULE_AFFINITY && (p->role[a] & COUNTED) && domain >= 0 && domain != p->domain_of[r * p->hosts + to])
      rule = r;
  }
  if (rule < 0) return 0;
  int n = find_followers(s, rule, p->domain_of[rule * p->hosts + here], i, followers), is_possible = n > 0;
  Trial t = {.s = s};
  for (int k = 0; is_possible && k < n; k++) is_possible = try_move(&t, followers[k], -1);
  is_possible = is_possible && state_may_leave(s, class, here) && try_move(&t, i, to);
  for (int k = 0; is_possible && k < n; k++) {
    is_possible = try_move(&t, followers[k], to);
    for (int turn = 1; !is_possible && turn < MAX_FOLLOWER_TRIES; turn++)
      is_possible = try_move(&t, followers[k], (int32_t)random_below(s, p->hosts));
  }
  return finish_trial(&t, is_possible, temperature);
}

/* Tries one change of the placement; returns the change of the cost.
 *
 *   move                 to a host with room
 *   swap                 with a replica on a host without room
 *   move_with_followers  in 1 of 10 cases, for classes with rules
 *   replace              for a replica without a host
 */
static double step(State *s, double temperature) {
  const Problem *p = s->p;
  int32_t i = (int32_t)random_below(s, p->replicas), to = propose(s, i);
  if (to < 0 || to == s->host_of[i]) return 0;
  ReplicaList *there = &s->replicas_on[to];
  if (s->host_of[i] < 0) {
    if (may_move(s, i, to)) state_move(s, i, to);
    else if (there->length && is_allowed(p, class_at(s, i), to))
      return replace(s, i, there->item[random_below(s, there->length)], temperature);
    return 0;
  }
  if (has_rules(p, class_at(s, i)) && random_below(s, 10) == 0) return move_with_followers(s, i, to, temperature);
  if (may_move(s, i, to)) {
    double delta = state_delta(s, i, to);
    if (!accepts(s, delta, temperature)) return 0;
    state_move(s, i, to);
    return delta;
  }
  if (!there->length || !is_allowed(p, class_at(s, i), to)) return 0;
  return swap(s, i, there->item[random_below(s, there->length)], temperature);
}

/* Mean change of the cost by a move, from at most 4000 proposals, without moves across a limit. */
static double typical_delta(State *s) {
  const Problem *p = s->p;
  double sum = 0, count = 0;
  for (int turn = 0; turn < 4000 && count < 500; turn++) {
    int32_t i = (int32_t)random_below(s, p->replicas), to = propose(s, i);
    if (to < 0 || s->host_of[i] < 0 || to == s->host_of[i] || !is_allowed(p, class_at(s, i), to)) continue;
    double delta = fabs(state_delta(s, i, to));
    if (delta > p->limit_price / 4 || delta == 0) continue;
    sum += delta;
    count++;
  }
  return count > 0 ? sum / count : 1;
}

/* Cools by the share of steps done, or of 0.9 of the time left if that is more; rens the change of the cost. */
static double anneal(Search *q, int64_t steps, double hot, double cold) {
  double cost = 0, temperature = hot, began = now_s(), time_left = 0.9 * (q->ends_at - began), spent = 0, done = 0;
  for (int64_t n = 0; n < steps && done < 1; n++) {
    if (n % 256 == 255) {
      if (n % 2048 == 2047) spent = time_left > 0 ? (now_s() - began) / time_left : 1;
      done = fmax((double)n / (double)steps, spent);
      temperature = hot * pow(cold / hot, done);
    }
    cost += step(q->s, temperature);
  }
  return cost;
}

/* Moves each replica to its best host, until no move helps. */
static void descend(Search *q) {
  State *s = q->s;
  for (int pass = 0, has_changed = 1; pass < DESCENT_PASSES && has_changed; pass++) {
    has_changed = 0;
    for (int32_t i = 0; i < s->p->replicas; i++) {
      int32_t here = s->host_of[i];
      if (here < 0 || (i % 64 == 0 && is_past_deadline(q))) continue;
      state_move(s, i, -1);
      double before = state_delta(s, i, here);
      int32_t to = best_host(q, i, -1);
      double after = to < 0 ? INFINITY : state_delta(s, i, to);
      state_move(s, i, here);
      if (to == here || after >= before - 1e-9 * fabs(before) || !state_allows(s, class_at(s, i), here, to)) continue;
      state_move(s, i, to);
      has_changed = 1;
    }
  }
}

/* Places replicas on their hints, then those that fit into the zone `home` unless that is -1, then the others. */
static void place_all(Search *q, const int32_t *hints, int64_t room_turns, int64_t home) {
  State *s = q->s;
  const Problem *p = s->p;
  Ranked *order = calloc((size_t)p->replicas + 1, sizeof(Ranked));
  for (int32_t i = 0; i < p->replicas; i++)
    if (hints[i] >= 0 && may_move(s, i, hints[i])) state_move(s, i, hints[i]);
  order_by_traffic(s, order);
  if (home >= 0) place_in_order(q, order, home);
  place_in_order(q, order, -1);
  free(order);
  if (s->n_placed < p->replicas) make_room(q, room_turns);
}

/* Places all replicas, see `NativeProblem.search` in native.py; returns the cost of the placement. `host_of` contains a hint or -1
 * per replica at first, and its host or -1 in the end. */
double plan_search(const Problem *p, int32_t *host_of, uint64_t seed, int64_t steps, int64_t room_turns, int64_t home, double hot,
                   double cold, double seconds) {
  Search q = {.s = state_new(p, seed),
              .neighbour_turn = calloc((size_t)p->hosts + 1, sizeof(int32_t)),
              .zone_price = calloc((size_t)p->zones + 1, sizeof(double)),
              .zone_price_turn = calloc((size_t)p->zones + 1, sizeof(int32_t)),
              .ends_at = now_s() + seconds};
  State *s = q.s;
  if (p->replicas && p->hosts) {
    place_all(&q, host_of, room_turns, home);
    /* In small problems a local optimum of the start may be better than the result of annealing. */
    if (p->replicas * p->hosts <= MAX_DESCENT_BEFORE) descend(&q);
    int32_t *start = malloc((size_t)p->replicas * sizeof(int32_t));
    copy_hosts(start, s);
    int64_t placed_before = s->n_placed;
    double scale = hot < 0 ? p->limit_price : typical_delta(s);
    if (steps && anneal(&q, steps, fabs(hot) * scale, cold * typical_delta(s)) > 0 && s->n_placed <= placed_before) restore(s, start);
    free(start);
    if (p->replicas * p->hosts <= MAX_DESCENT_AFTER) descend(&q);
  }
  copy_hosts(host_of, s);
  double cost = state_cost(s);
  state_free(s);
  free(q.neighbour_turn);
  free(q.zone_price);
  free(q.zone_price_turn);
  return cost;
}
