# frozen_string_literal: true

# What the tests let the real Sidekiq do, be it 6.4, 7.3 or 8.1. `ruby sidekiq.rb CODE..` runs code in here and prints its value as JSON;
# `ruby sidekiq.rb work QUEUE..` works queues, and says when it has begun.

require "json"
require "sidekiq"
require "sidekiq/api"

Sidekiq.logger.level = Logger::FATAL
Sidekiq.strict_args!(false) if Sidekiq.respond_to?(:strict_args!)
Redis.silence_deprecations = true if defined?(Redis) && Redis.respond_to?(:silence_deprecations=)
Redis.sadd_returns_boolean = false if defined?(Redis) && Redis.respond_to?(:sadd_returns_boolean=)
$stdout.sync = true

# Notes in a list with what it was called, and by whom.
class Echo
  include Sidekiq::Worker

  def perform(*args)
    Sidekiq.redis { |redis| redis.rpush("ran", JSON.generate(["ruby", args, jid])) }
  end
end

# Only Ruby knows this one.
class RubyOnly < Echo
end

# How it is set up differs: before 7 by options, since then by a configuration.
OLD = Sidekiq::VERSION.to_i < 7

# What a test asks, in the words of each version.
module Ask
  module_function

  def queue(name = "default")
    Sidekiq.redis { |redis| redis.lrange("queue:#{name}", 0, -1) }
  end

  def set(name)
    Sidekiq.redis { |redis| redis.zrange(name, 0, -1) }
  end

  def scores(name)
    return Sidekiq.redis { |redis| redis.zrange(name, 0, -1, with_scores: true) }.map(&:last) if OLD

    Sidekiq.redis { |redis| redis.call("ZRANGE", name, 0, -1, "WITHSCORES") }.map(&:last)
  end

  # Every entry anywhere is as Ruby would write it again.
  def stable?
    entries = queue + %w[schedule retry dead].flat_map { |name| set(name) }
    entries.reject { |entry| JSON.generate(JSON.parse(entry)) == entry }
  end

  # What is run at the moment: queue, args, and whether its beginning is a time of these days.
  def work
    set = OLD ? Sidekiq::Workers.new : Sidekiq::WorkSet.new
    set.map do |_, _, work|
      next [work["queue"], work["payload"]["args"], (Time.now.to_i - work["run_at"]).abs < 3600] if OLD

      [work.queue, work.job.args, (Time.now - work.run_at).abs < 3600]
    end
  end

  # Moves what is due, as fast as it can, for so many seconds.
  def promote(seconds)
    require "sidekiq/scheduled"
    poller = OLD ? Sidekiq::Scheduled::Enq.new : Sidekiq::Scheduled::Enq.new(Sidekiq.default_configuration)
    ends = Time.now + seconds
    poller.enqueue_jobs while Time.now < ends
  end

  # So many dead ones, the oldest a minute old.
  def bury(many)
    many.times.each_slice(1000) do |some|
      pairs = some.flat_map { |n| [(Time.now.to_f - 60 + n / 1e4).to_s, %({"class":"Echo","n":#{n}})] }
      Sidekiq.redis { |redis| redis.call("ZADD", "dead", *pairs) }
    end
  end
end

if ARGV[0] == "work"
  require "sidekiq/cli"
  require "sidekiq/launcher"
  if OLD
    Sidekiq.redis = { url: ENV.fetch("REDIS_URL"), size: 20 }
    Sidekiq::Launcher.new(Sidekiq.options.merge!(queues: ARGV[1..], concurrency: 5)).run
  else
    config = Sidekiq.default_configuration
    config.redis = { url: ENV.fetch("REDIS_URL") }
    config.queues = ARGV[1..]
    config.concurrency = 5
    Sidekiq::Launcher.new(config).run
  end
  puts "ready"
  $stdin.read
  exit!
else
  puts JSON.generate([eval(ARGV.join("\n"))]) # rubocop:disable Security/Eval
end
